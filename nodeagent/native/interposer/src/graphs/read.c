/* See read.h.
 *
 * The driver does not say which graphs a conditional node may run, only the caller that adds the
 * node learns it; so they are noted then. A handle that is used again was noted again.
 */
#include "graphs/read.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "driver/driver.h"
#include "launches/copies.h"
#include "plans/order.h"

enum { DEEPEST = 16 }; /* graphs in graphs */

struct conditional {
    const void *node;
    void *const *graphs;
    uint32_t count;
    struct conditional *next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct conditional *conditionals;

void view_note_conditional(const void *node, void *const *graphs, uint32_t count) {
    struct conditional *fresh = malloc(sizeof *fresh);
    pthread_mutex_lock(&lock);
    struct conditional *known = conditionals;
    while (known != NULL && known->node != node) {
        known = known->next;
    }
    if (known != NULL) {
        known->graphs = graphs;
        known->count = count;
    } else if (fresh != NULL) {
        *fresh = (struct conditional){node, graphs, count, conditionals};
        conditionals = fresh;
        fresh = NULL;
    }
    pthread_mutex_unlock(&lock);
    free(fresh);
}

/* ---- readers */

struct graph_reader *reader_of_kernel(const void *node, uint32_t top,
                                      const struct abi_kernel_node *parameters, bool has_kernel) {
    struct observer_range ranges[OBSERVER_MOST];
    const void *function = parameters->function;
    if (function == NULL && has_kernel) {
        function = parameters->kernel;
    }
    uint32_t count = observer_ranges(function, parameters->parameters, parameters->extra, ranges);
    struct graph_reader *reader = malloc(sizeof *reader + count * sizeof *ranges);
    if (reader != NULL) {
        *reader = (struct graph_reader){.node = node, .top = top, .count = count};
        memcpy(reader->ranges, ranges, count * sizeof *ranges);
    }
    return reader;
}

struct graph_reader *reader_of_copy(const void *node, uint32_t top, const struct abi_copy3d *copy) {
    struct graph_reader *reader = malloc(sizeof *reader + sizeof reader->ranges[0]);
    if (reader == NULL) {
        return NULL;
    }
    *reader = (struct graph_reader){.node = node, .top = top};
    reader->ranges[0] = copies_source(copy);
    reader->count = reader->ranges[0].bytes > 0;
    return reader;
}

void readers_free(struct graph_reader *reader) {
    while (reader != NULL) {
        struct graph_reader *next = reader->next;
        free(reader);
        reader = next;
    }
}

/* ---- shape */

struct place {
    const void *node;
    uint32_t place;
};

static int by_node(const void *one, const void *other) {
    uintptr_t a = (uintptr_t)((const struct place *)one)->node;
    uintptr_t b = (uintptr_t)((const struct place *)other)->node;
    return (a > b) - (a < b);
}

uint32_t view_place(const struct graph_view *view, const void *node) {
    uint32_t at = 0;
    while (at < view->node_count && view->nodes[at] != node) {
        at++;
    }
    return at;
}

/* Turns the handles of edges into places. False: an edge leads out of the graph. */
static bool name_edges(struct graph_view *view, void *const *from, void *const *to) {
    struct place *places = calloc((size_t)view->node_count + 1, sizeof *places);
    if (places == NULL) {
        return false;
    }
    for (uint32_t v = 0; v < view->node_count; v++) {
        places[v] = (struct place){view->nodes[v], v};
    }
    qsort(places, view->node_count, sizeof *places, by_node);
    bool whole = true;
    for (uint32_t e = 0; whole && e < view->edge_count; e++) {
        struct place ends[2] = {{.node = from[e]}, {.node = to[e]}};
        const struct place *first =
            bsearch(&ends[0], places, view->node_count, sizeof *places, by_node);
        const struct place *second =
            bsearch(&ends[1], places, view->node_count, sizeof *places, by_node);
        whole = first != NULL && second != NULL;
        if (whole) {
            view->edges[e] = (struct plan_edge){first->place, second->place};
        }
    }
    free(places);
    return whole;
}

static bool read_edges(void *graph, struct graph_view *view) {
    cuGraphGetEdges_v2_function *ask =
        (cuGraphGetEdges_v2_function *)driver_next(USED_cuGraphGetEdges_v2);
    size_t count = 0;
    if (ask == NULL || ask(graph, NULL, NULL, NULL, &count) != ABI_SUCCESS || count > INT32_MAX) {
        return false;
    }
    void **from = calloc(count + 1, sizeof *from);
    void **to = calloc(count + 1, sizeof *to);
    view->edges = calloc(count + 1, sizeof *view->edges);
    view->edge_data = calloc(count + 1, sizeof *view->edge_data);
    bool whole = from != NULL && to != NULL && view->edges != NULL && view->edge_data != NULL;
    whole = whole && (count == 0 || ask(graph, from, to, view->edge_data, &count) == ABI_SUCCESS);
    view->edge_count = (uint32_t)count;
    whole = whole && name_edges(view, from, to);
    free(from);
    free(to);
    return whole;
}

static bool read_nodes(void *graph, struct graph_view *view) {
    cuGraphGetNodes_function *list = (cuGraphGetNodes_function *)driver_next(USED_cuGraphGetNodes);
    size_t count = 0;
    if (list == NULL || list(graph, NULL, &count) != ABI_SUCCESS || count > INT32_MAX) {
        return false;
    }
    view->nodes = calloc(count + 1, sizeof *view->nodes);
    view->node_count = (uint32_t)count;
    return view->nodes != NULL && (count == 0 || list(graph, view->nodes, &count) == ABI_SUCCESS);
}

/* ---- reading */

struct reading {
    struct graph_view *view; /* of the outermost graph */
    struct graph_reader **tail;
    bool whole;
};

static void read_graph(struct reading *reading, void *graph, uint32_t top, int depth);

static void append(struct reading *reading, struct graph_reader *reader) {
    reading->whole = reading->whole && reader != NULL;
    *reading->tail = reader;
    while (*reading->tail != NULL) {
        reading->tail = &(*reading->tail)->next;
    }
}

/* NOLINTNEXTLINE(misc-no-recursion) graphs nest, and DEEPEST bounds it */
static void read_conditional(struct reading *reading, const void *node, uint32_t top, int depth) {
    pthread_mutex_lock(&lock);
    const struct conditional *known = conditionals;
    while (known != NULL && known->node != node) {
        known = known->next;
    }
    void *const *graphs = known == NULL ? NULL : known->graphs;
    uint32_t count = known == NULL ? 0 : known->count;
    pthread_mutex_unlock(&lock);
    for (uint32_t i = 0; i < count; i++) {
        read_graph(reading, graphs[i], top, depth + 1);
    }
}

/* NOLINTNEXTLINE(misc-no-recursion) graphs nest, and DEEPEST bounds it */
static void read_node(struct reading *reading, void *node, uint32_t top, int depth) {
    cuGraphNodeGetType_function *type_of =
        (cuGraphNodeGetType_function *)driver_next(USED_cuGraphNodeGetType);
    cuGraphKernelNodeGetParams_v2_function *kernel_of =
        (cuGraphKernelNodeGetParams_v2_function *)driver_next(USED_cuGraphKernelNodeGetParams_v2);
    cuGraphMemcpyNodeGetParams_function *copy_of =
        (cuGraphMemcpyNodeGetParams_function *)driver_next(USED_cuGraphMemcpyNodeGetParams);
    cuGraphChildGraphNodeGetGraph_function *child_of =
        (cuGraphChildGraphNodeGetGraph_function *)driver_next(USED_cuGraphChildGraphNodeGetGraph);
    int type = 0;
    struct abi_kernel_node kernel = {0};
    struct abi_copy3d copy = {0};
    void *child = NULL;
    bool known = type_of != NULL && type_of(node, &type) == ABI_SUCCESS;
    if (known && type == ABI_NODE_KERNEL) {
        known = kernel_of != NULL && kernel_of(node, &kernel) == ABI_SUCCESS;
    } else if (known && type == ABI_NODE_COPY) {
        known = copy_of != NULL && copy_of(node, &copy) == ABI_SUCCESS;
    } else if (known && type == ABI_NODE_CHILD_GRAPH) {
        known = child_of != NULL && child_of(node, &child) == ABI_SUCCESS;
    }
    if (!known) {
        reading->whole = false;
    } else if (type == ABI_NODE_KERNEL) {
        append(reading, reader_of_kernel(node, top, &kernel, true));
    } else if (type == ABI_NODE_COPY) {
        append(reading, reader_of_copy(node, top, &copy));
    } else if (type == ABI_NODE_CHILD_GRAPH) {
        read_graph(reading, child, top, depth + 1);
    } else if (type == ABI_NODE_ALLOCATION || type == ABI_NODE_FREE) {
        reading->view->fixed = true;
    } else if (type == ABI_NODE_CONDITIONAL) {
        reading->view->fixed = true;
        read_conditional(reading, node, top, depth);
    }
}

/* Appends the readers of a graph, in order. */
/* NOLINTNEXTLINE(misc-no-recursion) graphs nest, and DEEPEST bounds it */
static void read_graph(struct reading *reading, void *graph, uint32_t top, int depth) {
    struct graph_view inner = {0};
    struct graph_view *view = depth == 0 ? reading->view : &inner;
    struct graph_order order;
    if (depth > DEEPEST || !read_nodes(graph, view) || !read_edges(graph, view)) {
        reading->whole = false;
    } else {
        struct plan_node *nothing = calloc((size_t)view->node_count + 1, sizeof *nothing);
        const struct plan_question shape = {.node_count = view->node_count,
                                            .edge_count = view->edge_count,
                                            .nodes = nothing,
                                            .edges = view->edges};
        if (nothing != NULL && order_nodes(&shape, &order)) {
            for (uint32_t i = 0; i < view->node_count; i++) {
                uint32_t v = order.nodes[i];
                read_node(reading, view->nodes[v], depth == 0 ? v : top, depth);
            }
            order_free(&order);
        } else {
            reading->whole = false;
        }
        free(nothing);
    }
    free(inner.nodes);
    free(inner.edges);
    free(inner.edge_data);
}

struct graph_view *view_read(void *graph) {
    struct graph_view *view = calloc(1, sizeof *view);
    if (view == NULL) {
        return NULL;
    }
    struct reading reading = {.view = view, .tail = &view->readers, .whole = true};
    read_graph(&reading, graph, 0, 0);
    if (!reading.whole) {
        view_free(view);
        return NULL;
    }
    return view;
}

struct graph_reader *readers_of_child(void *graph, uint32_t top) {
    struct graph_view view = {0};
    struct graph_reader *readers = NULL;
    struct reading reading = {.view = &view, .tail = &readers, .whole = true};
    read_graph(&reading, graph, top, 1);
    return readers;
}

void view_free(struct graph_view *view) {
    if (view != NULL) {
        readers_free(view->readers);
        free(view->nodes);
        free(view->edges);
        free(view->edge_data);
        free(view);
    }
}
