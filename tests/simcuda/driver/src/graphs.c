/* Building graphs and asking about their shape. See graphs.h. */
#include "graphs.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "context.h"
#include "entry.h"
#include "objects.h"

/* Recursive: the work of a child node is a graph, which is copied and freed with the node. */
static pthread_mutex_t lock;
static pthread_once_t lock_once = PTHREAD_ONCE_INIT;
static unsigned next_graph = 1;

static void lock_make(void) {
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_settype(&attributes, PTHREAD_MUTEX_RECURSIVE);
    pthread_mutex_init(&lock, &attributes);
    pthread_mutexattr_destroy(&attributes);
}

void graphs_lock(void) {
    pthread_once(&lock_once, lock_make);
    pthread_mutex_lock(&lock);
}

void graphs_unlock(void) {
    pthread_mutex_unlock(&lock);
}

CUgraph graph_new(void) {
    CUgraph graph = calloc(1, sizeof *graph);
    if (graph != NULL && !object_add(graph, OBJECT_GRAPH)) {
        free(graph);
        graph = NULL;
    }
    if (graph != NULL) {
        graph->id = next_graph++;
    }
    return graph;
}

void node_drop(CUgraphNode node) {
    object_remove(node, OBJECT_GRAPH_NODE);
    work_free(node->work);
    free(node->edges);
    free(node);
}

void graph_drop(CUgraph graph) {
    object_remove(graph, OBJECT_GRAPH);
    for (size_t i = 0; i < graph->count; i++) {
        node_drop(graph->nodes[i]);
    }
    free(graph->nodes);
    free(graph);
}

void graph_free(CUgraph graph) {
    graphs_lock();
    graph_drop(graph);
    graphs_unlock();
}

bool edge_add(CUgraphNode to, CUgraphNode from, const CUgraphEdgeData *data) {
    struct edge *larger = realloc(to->edges, (to->edge_count + 1) * sizeof *larger);
    if (larger == NULL) {
        return false;
    }
    to->edges = larger;
    larger[to->edge_count] = (struct edge){.from = from};
    if (data != NULL) {
        larger[to->edge_count].data = *data;
    }
    to->edge_count++;
    return true;
}

bool graph_has(CUgraph graph, CUgraphNode node) {
    return object_is(node, OBJECT_GRAPH_NODE) && node->graph == graph;
}

CUresult graph_add(CUgraph graph, struct work *work, const CUgraphNode *after,
                   const CUgraphEdgeData *data, size_t count, CUgraphNode *added) {
    CUresult result = work == NULL ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
    for (size_t i = 0; i < count && result == CUDA_SUCCESS; i++) {
        if (after == NULL || !graph_has(graph, after[i])) {
            result = CUDA_ERROR_INVALID_VALUE;
        }
    }
    if (result == CUDA_SUCCESS && graph->count == graph->capacity) {
        size_t wanted = graph->capacity == 0 ? 16 : graph->capacity * 2;
        CUgraphNode *larger = realloc(graph->nodes, wanted * sizeof(CUgraphNode));
        if (larger == NULL) {
            result = CUDA_ERROR_OUT_OF_MEMORY;
        } else {
            graph->nodes = larger;
            graph->capacity = wanted;
        }
    }
    CUgraphNode node = result == CUDA_SUCCESS ? calloc(1, sizeof *node) : NULL;
    if (node == NULL) {
        work_free(work);
        return result == CUDA_SUCCESS ? CUDA_ERROR_OUT_OF_MEMORY : result;
    }
    node->graph = graph;
    node->id = graph->next_node++;
    node->work = work;
    for (size_t i = 0; i < count; i++) {
        if (!edge_add(node, after[i], data == NULL ? NULL : &data[i])) {
            result = CUDA_ERROR_OUT_OF_MEMORY;
        }
    }
    if (result == CUDA_SUCCESS && !object_add(node, OBJECT_GRAPH_NODE)) {
        result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (result != CUDA_SUCCESS) {
        node_drop(node);
        return result;
    }
    if (work->kind == WORK_CHILD) {
        work->child->embedded = true;
    }
    graph->nodes[graph->count++] = node;
    if (added != NULL) {
        *added = node;
    }
    return CUDA_SUCCESS;
}

size_t node_index(CUgraph graph, CUgraphNode node) {
    size_t at = 0;
    while (at < graph->count && graph->nodes[at] != node) {
        at++;
    }
    return at;
}

CUgraph graph_duplicate(CUgraph graph) {
    CUgraph copy = graph_new();
    if (copy == NULL) {
        return NULL;
    }
    copy->origin = graph;
    bool whole = true;
    for (size_t i = 0; i < graph->count && whole; i++) {
        CUgraphNode node = NULL;
        whole =
            graph_add(copy, work_copy(graph->nodes[i]->work), NULL, NULL, 0, &node) == CUDA_SUCCESS;
        if (whole) {
            node->origin = graph->nodes[i];
        }
    }
    for (size_t i = 0; i < graph->count && whole; i++) {
        for (size_t e = 0; e < graph->nodes[i]->edge_count && whole; e++) {
            const struct edge *edge = &graph->nodes[i]->edges[e];
            whole =
                edge_add(copy->nodes[i], copy->nodes[node_index(graph, edge->from)], &edge->data);
        }
    }
    if (!whole) {
        graph_drop(copy);
        copy = NULL;
    }
    return copy;
}

CUgraph graph_copy(CUgraph graph) {
    graphs_lock();
    CUgraph copy = graph_duplicate(graph);
    graphs_unlock();
    return copy;
}

CUgraphNode *graph_sorted(CUgraph graph) {
    CUgraphNode *order = calloc(graph->count + 1, sizeof(CUgraphNode));
    size_t *missing = calloc(graph->count + 1, sizeof *missing);
    if (order == NULL || missing == NULL) {
        free(order);
        free(missing);
        return NULL;
    }
    for (size_t i = 0; i < graph->count; i++) {
        missing[i] = graph->nodes[i]->edge_count;
    }
    /* Always the earliest added node that is free: a captured graph keeps the order of its capture.
     */
    for (size_t filled = 0; filled < graph->count; filled++) {
        size_t next = 0;
        while (next < graph->count && missing[next] != 0) {
            next++;
        }
        if (next == graph->count) {
            break;
        }
        missing[next] = SIZE_MAX;
        order[filled] = graph->nodes[next];
        for (size_t i = 0; i < graph->count; i++) {
            for (size_t e = 0; missing[i] != SIZE_MAX && e < graph->nodes[i]->edge_count; e++) {
                missing[i] -= graph->nodes[i]->edges[e].from == order[filled];
            }
        }
    }
    free(missing);
    return order;
}

CUgraphNodeType node_type(CUgraphNode node) {
    switch (node->work->kind) {
    case WORK_KERNEL:
        return CU_GRAPH_NODE_TYPE_KERNEL;
    case WORK_COPY:
        return CU_GRAPH_NODE_TYPE_MEMCPY;
    case WORK_FILL:
        return CU_GRAPH_NODE_TYPE_MEMSET;
    case WORK_MEMOPS:
        return CU_GRAPH_NODE_TYPE_BATCH_MEM_OP;
    case WORK_HOST:
        return CU_GRAPH_NODE_TYPE_HOST;
    case WORK_CHILD:
        return CU_GRAPH_NODE_TYPE_GRAPH;
    case WORK_EVENT_RECORD:
        return CU_GRAPH_NODE_TYPE_EVENT_RECORD;
    case WORK_EVENT_WAIT:
        return CU_GRAPH_NODE_TYPE_WAIT_EVENT;
    default:
        return CU_GRAPH_NODE_TYPE_EMPTY;
    }
}

CUresult IMPL(cuGraphCreate)(CUgraph *phGraph, unsigned int flags) {
    if (!driver_ready()) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    if (phGraph == NULL || flags != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    graphs_lock();
    *phGraph = graph_new();
    graphs_unlock();
    return *phGraph == NULL ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

CUresult IMPL(cuGraphDestroy)(CUgraph hGraph) {
    if (!driver_ready()) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    graphs_lock();
    bool mine = object_is(hGraph, OBJECT_GRAPH) && !hGraph->embedded;
    if (mine) {
        graph_drop(hGraph);
    }
    graphs_unlock();
    return mine ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult IMPL(cuGraphClone)(CUgraph *phGraphClone, CUgraph originalGraph) {
    if (phGraphClone == NULL || !object_is(originalGraph, OBJECT_GRAPH)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *phGraphClone = graph_copy(originalGraph);
    return *phGraphClone == NULL ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

CUresult IMPL(cuGraphNodeFindInClone)(CUgraphNode *phNode, CUgraphNode hOriginalNode,
                                      CUgraph hClonedGraph) {
    if (phNode == NULL || !object_is(hClonedGraph, OBJECT_GRAPH)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *phNode = NULL;
    graphs_lock();
    for (size_t i = 0; i < hClonedGraph->count; i++) {
        if (hClonedGraph->nodes[i]->origin == hOriginalNode) {
            *phNode = hClonedGraph->nodes[i];
        }
    }
    graphs_unlock();
    return *phNode == NULL ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult IMPL(cuGraphGetId)(CUgraph hGraph, unsigned int *graphId) {
    if (graphId == NULL || !object_is(hGraph, OBJECT_GRAPH)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *graphId = hGraph->id;
    return CUDA_SUCCESS;
}

CUresult IMPL(cuGraphNodeGetType)(CUgraphNode hNode, CUgraphNodeType *type) {
    if (type == NULL || !object_is(hNode, OBJECT_GRAPH_NODE)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    graphs_lock();
    *type = node_type(hNode);
    graphs_unlock();
    return CUDA_SUCCESS;
}

CUresult IMPL(cuGraphNodeGetContainingGraph)(CUgraphNode hNode, CUgraph *phGraph) {
    if (phGraph == NULL || !object_is(hNode, OBJECT_GRAPH_NODE)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *phGraph = hNode->graph;
    return CUDA_SUCCESS;
}

CUresult IMPL(cuGraphNodeGetLocalId)(CUgraphNode hNode, unsigned int *nodeId) {
    if (nodeId == NULL || !object_is(hNode, OBJECT_GRAPH_NODE)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *nodeId = hNode->id;
    return CUDA_SUCCESS;
}
