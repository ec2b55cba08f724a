/* Asking about the shape of a graph, and changing its edges. */
#include <string.h>

#include "entry.h"
#include "graphs.h"
#include "objects.h"

/* Lists follow one rule: without an array only the count is told; with one, at most *count are
 * filled in, the rest of the array is cleared, and *count says how many there were room for. */
struct listing {
    CUgraphNode *first, *second;
    CUgraphEdgeData *data;
    size_t room, seen;
    bool lossy; /* edge data would have been left out */
};

static void listing_put(struct listing *listing, CUgraphNode first, CUgraphNode second,
                        const CUgraphEdgeData *data) {
    static const CUgraphEdgeData plain;
    size_t at = listing->seen++;
    if (at < listing->room && listing->first != NULL) {
        listing->first[at] = first;
    }
    if (at < listing->room && listing->second != NULL) {
        listing->second[at] = second;
    }
    if (at < listing->room && listing->data != NULL && data != NULL) {
        listing->data[at] = *data;
    } else if (data != NULL && memcmp(data, &plain, sizeof plain) != 0) {
        listing->lossy = true;
    }
}

static CUresult listing_end(struct listing *listing, size_t *count) {
    bool asked = listing->first != NULL || listing->second != NULL;
    if (asked && listing->lossy && listing->data == NULL) {
        return CUDA_ERROR_LOSSY_QUERY;
    }
    for (size_t i = listing->seen; i < listing->room; i++) {
        if (listing->first != NULL) {
            listing->first[i] = NULL;
        }
        if (listing->second != NULL) {
            listing->second[i] = NULL;
        }
    }
    *count = asked && listing->seen > listing->room ? listing->room : listing->seen;
    return CUDA_SUCCESS;
}

static CUresult list_nodes(CUgraph graph, CUgraphNode *nodes, size_t *count, bool roots) {
    if (count == NULL || !object_is(graph, OBJECT_GRAPH)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    struct listing listing = {.first = nodes, .room = nodes == NULL ? 0 : *count};
    graphs_lock();
    for (size_t i = 0; i < graph->count; i++) {
        if (!roots || graph->nodes[i]->edge_count == 0) {
            listing_put(&listing, graph->nodes[i], NULL, NULL);
        }
    }
    graphs_unlock();
    return listing_end(&listing, count);
}

CUresult IMPL(cuGraphGetNodes)(CUgraph hGraph, CUgraphNode *nodes, size_t *numNodes) {
    return list_nodes(hGraph, nodes, numNodes, false);
}

CUresult IMPL(cuGraphGetRootNodes)(CUgraph hGraph, CUgraphNode *rootNodes, size_t *numRootNodes) {
    return list_nodes(hGraph, rootNodes, numRootNodes, true);
}

CUresult IMPL(cuGraphGetEdges_v2)(CUgraph hGraph, CUgraphNode *from, CUgraphNode *to,
                                  CUgraphEdgeData *edgeData, size_t *numEdges) {
    if (numEdges == NULL || !object_is(hGraph, OBJECT_GRAPH) || (from == NULL) != (to == NULL)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    struct listing listing = {
        .first = from, .second = to, .data = edgeData, .room = from == NULL ? 0 : *numEdges};
    graphs_lock();
    for (size_t i = 0; i < hGraph->count; i++) {
        for (size_t e = 0; e < hGraph->nodes[i]->edge_count; e++) {
            listing_put(&listing, hGraph->nodes[i]->edges[e].from, hGraph->nodes[i],
                        &hGraph->nodes[i]->edges[e].data);
        }
    }
    graphs_unlock();
    return listing_end(&listing, numEdges);
}

CUresult IMPL(cuGraphGetEdges)(CUgraph hGraph, CUgraphNode *from, CUgraphNode *to,
                               size_t *numEdges) {
    return IMPL(cuGraphGetEdges_v2)(hGraph, from, to, NULL, numEdges);
}

CUresult IMPL(cuGraphNodeGetDependencies_v2)(CUgraphNode hNode, CUgraphNode *dependencies,
                                             CUgraphEdgeData *edgeData, size_t *numDependencies) {
    if (numDependencies == NULL || !object_is(hNode, OBJECT_GRAPH_NODE)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    struct listing listing = {.first = dependencies,
                              .data = edgeData,
                              .room = dependencies == NULL ? 0 : *numDependencies};
    graphs_lock();
    for (size_t e = 0; e < hNode->edge_count; e++) {
        listing_put(&listing, hNode->edges[e].from, NULL, &hNode->edges[e].data);
    }
    graphs_unlock();
    return listing_end(&listing, numDependencies);
}

CUresult IMPL(cuGraphNodeGetDependencies)(CUgraphNode hNode, CUgraphNode *dependencies,
                                          size_t *numDependencies) {
    return IMPL(cuGraphNodeGetDependencies_v2)(hNode, dependencies, NULL, numDependencies);
}

CUresult IMPL(cuGraphNodeGetDependentNodes_v2)(CUgraphNode hNode, CUgraphNode *dependentNodes,
                                               CUgraphEdgeData *edgeData,
                                               size_t *numDependentNodes) {
    if (numDependentNodes == NULL || !object_is(hNode, OBJECT_GRAPH_NODE)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    struct listing listing = {.first = dependentNodes,
                              .data = edgeData,
                              .room = dependentNodes == NULL ? 0 : *numDependentNodes};
    graphs_lock();
    CUgraph graph = hNode->graph;
    for (size_t i = 0; i < graph->count; i++) {
        for (size_t e = 0; e < graph->nodes[i]->edge_count; e++) {
            if (graph->nodes[i]->edges[e].from == hNode) {
                listing_put(&listing, graph->nodes[i], NULL, &graph->nodes[i]->edges[e].data);
            }
        }
    }
    graphs_unlock();
    return listing_end(&listing, numDependentNodes);
}

CUresult IMPL(cuGraphNodeGetDependentNodes)(CUgraphNode hNode, CUgraphNode *dependentNodes,
                                            size_t *numDependentNodes) {
    return IMPL(cuGraphNodeGetDependentNodes_v2)(hNode, dependentNodes, NULL, numDependentNodes);
}

/* Can `to` be reached from `from` along edges? */
static bool node_reaches(CUgraphNode from, CUgraphNode to) {
    if (from == to) {
        return true;
    }
    for (size_t e = 0; e < to->edge_count; e++) {
        if (node_reaches(from, to->edges[e].from)) {
            return true;
        }
    }
    return false;
}

static struct edge *edge_find(CUgraphNode from, CUgraphNode to) {
    for (size_t e = 0; e < to->edge_count; e++) {
        if (to->edges[e].from == from) {
            return &to->edges[e];
        }
    }
    return NULL;
}

CUresult IMPL(cuGraphAddDependencies_v2)(CUgraph hGraph, const CUgraphNode *from,
                                         const CUgraphNode *to, const CUgraphEdgeData *edgeData,
                                         size_t numDependencies) {
    if (!object_is(hGraph, OBJECT_GRAPH) || (numDependencies > 0 && (from == NULL || to == NULL))) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUresult result = CUDA_SUCCESS;
    graphs_lock();
    for (size_t i = 0; i < numDependencies && result == CUDA_SUCCESS; i++) {
        if (!graph_has(hGraph, from[i]) || !graph_has(hGraph, to[i]) ||
            node_reaches(to[i], from[i]) || edge_find(from[i], to[i]) != NULL) {
            result = CUDA_ERROR_INVALID_VALUE;
        } else if (!edge_add(to[i], from[i], edgeData == NULL ? NULL : &edgeData[i])) {
            result = CUDA_ERROR_OUT_OF_MEMORY;
        }
    }
    graphs_unlock();
    return result;
}

CUresult IMPL(cuGraphAddDependencies)(CUgraph hGraph, const CUgraphNode *from,
                                      const CUgraphNode *to, size_t numDependencies) {
    return IMPL(cuGraphAddDependencies_v2)(hGraph, from, to, NULL, numDependencies);
}

CUresult IMPL(cuGraphRemoveDependencies_v2)(CUgraph hGraph, const CUgraphNode *from,
                                            const CUgraphNode *to, const CUgraphEdgeData *edgeData,
                                            size_t numDependencies) {
    static const CUgraphEdgeData plain;
    if (!object_is(hGraph, OBJECT_GRAPH) || (numDependencies > 0 && (from == NULL || to == NULL))) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUresult result = CUDA_SUCCESS;
    graphs_lock();
    for (size_t i = 0; i < numDependencies && result == CUDA_SUCCESS; i++) {
        struct edge *edge = graph_has(hGraph, from[i]) && graph_has(hGraph, to[i])
                                ? edge_find(from[i], to[i])
                                : NULL;
        /* An edge is only removed by a call that names its data, too. */
        if (edge == NULL ||
            memcmp(&edge->data, edgeData == NULL ? &plain : &edgeData[i], sizeof plain) != 0) {
            result = CUDA_ERROR_INVALID_VALUE;
        } else {
            *edge = to[i]->edges[--to[i]->edge_count];
        }
    }
    graphs_unlock();
    return result;
}

CUresult IMPL(cuGraphRemoveDependencies)(CUgraph hGraph, const CUgraphNode *from,
                                         const CUgraphNode *to, size_t numDependencies) {
    return IMPL(cuGraphRemoveDependencies_v2)(hGraph, from, to, NULL, numDependencies);
}

CUresult IMPL(cuGraphDestroyNode)(CUgraphNode hNode) {
    if (!object_is(hNode, OBJECT_GRAPH_NODE)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    graphs_lock();
    CUgraph graph = hNode->graph;
    size_t at = node_index(graph, hNode);
    graph->count--;
    memmove(&graph->nodes[at], &graph->nodes[at + 1], (graph->count - at) * sizeof(CUgraphNode));
    for (size_t i = 0; i < graph->count; i++) {
        for (size_t e = graph->nodes[i]->edge_count; e-- > 0;) {
            if (graph->nodes[i]->edges[e].from == hNode) {
                graph->nodes[i]->edges[e] = graph->nodes[i]->edges[--graph->nodes[i]->edge_count];
            }
        }
    }
    node_drop(hNode);
    graphs_unlock();
    return CUDA_SUCCESS;
}
