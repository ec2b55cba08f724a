/* See graphs.h.
 *
 * Kernels stand in an order in which they may run: by their edges, and among those that are free by
 * their creation, which is the order in which a stream was captured. The lock is never held during
 * a driver call or a gate; the observer's is taken inside it.
 */
#include "graphs.h"

#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "driver.h"
#include "gate.h"
#include "observer.h"

enum { DEEPEST = 16 }; /* child graphs in child graphs */

struct kernel {
    const void *node;
    const void *top; /* the node of the outermost graph in which it lies */
    struct kernel *next;
    uint32_t count;
    uint64_t words[];
};

/* Which weights the kernels name, as of one generation. Shared by launches under way. */
struct named {
    uint64_t generation;
    uint32_t users;
    uint32_t kernels;
    uint32_t *ends;
    uint32_t *weights;
};

struct graph {
    const void *exec;
    struct graph *next;
    struct kernel *kernels;
    struct named *named;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct graph *graphs; /* a process has tens of them */

/* ---- reading what the driver knows, without the lock */

static struct kernel *read_kernel(const void *node, const void *top,
                                  const struct abi_kernel_node *parameters, bool has_kernel) {
    uint64_t words[OBSERVER_MOST];
    const void *function = parameters->function;
    if (function == NULL && has_kernel) {
        function = parameters->kernel;
    }
    uint32_t count = observer_words(function, parameters->parameters, parameters->extra, words);
    struct kernel *kernel = malloc(sizeof *kernel + count * sizeof *words);
    if (kernel != NULL) {
        *kernel = (struct kernel){.node = node, .top = top, .count = count};
        memcpy(kernel->words, words, count * sizeof *words);
    }
    return kernel;
}

static void free_kernels(struct kernel *kernel) {
    while (kernel != NULL) {
        struct kernel *next = kernel->next;
        free(kernel);
        kernel = next;
    }
}

static size_t place_of(void *const *nodes, size_t count, const void *node) {
    size_t i = 0;
    while (i < count && nodes[i] != node) {
        i++;
    }
    return i;
}

/* Puts nodes into an order in which they may run. Leaves them alone when edges cannot be had. */
static void sort_nodes(void *graph, void **nodes, size_t count) {
    cuGraphGetEdges_v2_function *ask =
        (cuGraphGetEdges_v2_function *)driver_next(USED_cuGraphGetEdges_v2);
    size_t edges = 0;
    if (ask == NULL || ask(graph, NULL, NULL, NULL, &edges) != ABI_SUCCESS || edges == 0) {
        return;
    }
    void **from = calloc(edges, sizeof *from);
    void **to = calloc(edges, sizeof *to);
    struct abi_edge *data = calloc(edges, sizeof *data);
    size_t *waits_for = calloc(count, sizeof *waits_for);
    void **sorted = calloc(count, sizeof *sorted);
    if (from != NULL && to != NULL && data != NULL && waits_for != NULL && sorted != NULL &&
        ask(graph, from, to, data, &edges) == ABI_SUCCESS) {
        for (size_t e = 0; e < edges; e++) {
            size_t place = place_of(nodes, count, to[e]);
            if (place < count) {
                waits_for[place]++;
            }
        }
        size_t done = 0;
        for (size_t i = 0; i < count; i++) {
            if (waits_for[i] > 0 || nodes[i] == NULL) {
                continue;
            }
            sorted[done++] = nodes[i];
            size_t restart = i;
            for (size_t e = 0; e < edges; e++) {
                size_t place = from[e] == nodes[i] ? place_of(nodes, count, to[e]) : count;
                if (place < count && --waits_for[place] == 0 && place < restart) {
                    restart = place; /* created earlier, free only now */
                }
            }
            nodes[i] = NULL;
            i = restart < i ? restart - 1 : i; /* wraps to be 0 again after i++ */
        }
        if (done == count) {
            memcpy(nodes, sorted, count * sizeof *sorted);
        }
    }
    free(from);
    free(to);
    free(data);
    free(waits_for);
    free(sorted);
}

/* Appends the kernels of a graph, in order; returns where the next one goes. */
/* NOLINTNEXTLINE(misc-no-recursion) child graphs nest, and DEEPEST bounds it */
static struct kernel **read_graph(void *graph, const void *top, int depth, struct kernel **tail) {
    cuGraphGetNodes_function *list = (cuGraphGetNodes_function *)driver_next(USED_cuGraphGetNodes);
    cuGraphNodeGetType_function *type_of =
        (cuGraphNodeGetType_function *)driver_next(USED_cuGraphNodeGetType);
    cuGraphKernelNodeGetParams_v2_function *read =
        (cuGraphKernelNodeGetParams_v2_function *)driver_next(USED_cuGraphKernelNodeGetParams_v2);
    cuGraphChildGraphNodeGetGraph_function *child_of =
        (cuGraphChildGraphNodeGetGraph_function *)driver_next(USED_cuGraphChildGraphNodeGetGraph);
    size_t count = 0;
    if (list == NULL || type_of == NULL || read == NULL || child_of == NULL || depth > DEEPEST ||
        list(graph, NULL, &count) != ABI_SUCCESS || count == 0) {
        return tail;
    }
    void **nodes = calloc(count, sizeof *nodes);
    if (nodes == NULL || list(graph, nodes, &count) != ABI_SUCCESS) {
        free(nodes);
        return tail;
    }
    sort_nodes(graph, nodes, count);
    for (size_t i = 0; i < count; i++) {
        int type = 0;
        struct abi_kernel_node parameters = {0};
        void *child = NULL;
        const void *node_top = top == NULL ? nodes[i] : top;
        if (type_of(nodes[i], &type) != ABI_SUCCESS) {
            continue;
        }
        if (type == ABI_NODE_KERNEL && read(nodes[i], &parameters) == ABI_SUCCESS) {
            *tail = read_kernel(nodes[i], node_top, &parameters, true);
            tail = *tail == NULL ? tail : &(*tail)->next;
        } else if (type == ABI_NODE_CHILD_GRAPH && child_of(nodes[i], &child) == ABI_SUCCESS) {
            tail = read_graph(child, node_top, depth + 1, tail);
        }
    }
    free(nodes);
    return tail;
}

/* ---- what is kept, under the lock */

static struct graph *find(const void *exec) {
    struct graph *graph = graphs;
    while (graph != NULL && graph->exec != exec) {
        graph = graph->next;
    }
    return graph;
}

static void release(struct named *named) {
    if (named != NULL && --named->users == 0) {
        free(named->ends);
        free(named->weights);
        free(named);
    }
}

static void forget_named(struct graph *graph) {
    release(graph->named);
    graph->named = NULL;
}

static void replace_all(void *exec, struct kernel *kernels, bool add) {
    struct graph *fresh = add ? calloc(1, sizeof *fresh) : NULL;
    pthread_mutex_lock(&lock);
    struct graph *graph = find(exec);
    if (graph == NULL && fresh != NULL) {
        graph = fresh;
        fresh = NULL;
        graph->exec = exec;
        graph->next = graphs;
        graphs = graph;
    }
    struct kernel *old = kernels;
    if (graph != NULL) {
        old = graph->kernels;
        graph->kernels = kernels;
        forget_named(graph);
    }
    pthread_mutex_unlock(&lock);
    free_kernels(old);
    free(fresh);
}

void graphs_instantiated(void *exec, void *graph) {
    struct kernel *kernels = NULL;
    read_graph(graph, NULL, 0, &kernels);
    replace_all(exec, kernels, true);
}

void graphs_updated(void *exec, void *graph) {
    struct kernel *kernels = NULL;
    read_graph(graph, NULL, 0, &kernels);
    /* The graph's nodes are other handles than those of the graph that was instantiated; changes
     * of single nodes name the latter, which are thus no longer found, and add what they name. */
    replace_all(exec, kernels, false);
}

/* Puts kernels in the place of those of one node: of an inner one, or of all of an outer one. */
static void replace_node(void *exec, const void *node, bool outer, struct kernel *kernels) {
    pthread_mutex_lock(&lock);
    struct graph *graph = find(exec);
    struct kernel *old = NULL;
    if (graph != NULL) {
        struct kernel **at = &graph->kernels;
        while (*at != NULL && (outer ? (*at)->top : (*at)->node) != node) {
            at = &(*at)->next;
        }
        struct kernel **old_tail = &old;
        while (*at != NULL && (outer ? (*at)->top : (*at)->node) == node) {
            *old_tail = *at;
            *at = (*at)->next;
            old_tail = &(*old_tail)->next;
            *old_tail = NULL;
        }
        struct kernel *rest = *at;
        *at = kernels;
        while (*at != NULL) {
            at = &(*at)->next;
        }
        *at = rest;
        kernels = NULL;
        forget_named(graph);
    }
    pthread_mutex_unlock(&lock);
    free_kernels(old);
    free_kernels(kernels);
}

/* The outer node of an inner one, so that it stays known by both. */
static const void *top_of(const void *exec, const void *node) {
    const void *top = node;
    pthread_mutex_lock(&lock);
    const struct graph *graph = find(exec);
    for (const struct kernel *k = graph == NULL ? NULL : graph->kernels; k != NULL; k = k->next) {
        top = k->node == node ? k->top : top;
    }
    pthread_mutex_unlock(&lock);
    return top;
}

void graphs_node_changed(void *exec, void *node, const void *parameters, bool has_kernel) {
    replace_node(exec, node, false, read_kernel(node, top_of(exec, node), parameters, has_kernel));
}

void graphs_any_node_changed(void *exec, void *node, const void *parameters) {
    const struct abi_any_node *any = parameters;
    if (any->type == ABI_NODE_KERNEL) {
        graphs_node_changed(exec, node, &any->as.kernel, true);
    } else if (any->type == ABI_NODE_CHILD_GRAPH) {
        graphs_child_changed(exec, node, any->as.child_graph);
    }
}

void graphs_child_changed(void *exec, void *node, void *graph) {
    struct kernel *kernels = NULL;
    read_graph(graph, node, 1, &kernels);
    replace_node(exec, node, true, kernels);
}

int graphs_destroy(void *exec) {
    pthread_mutex_lock(&lock);
    struct graph **at = &graphs;
    while (*at != NULL && (*at)->exec != exec) {
        at = &(*at)->next;
    }
    struct graph *graph = *at;
    if (graph != NULL) {
        *at = graph->next;
        forget_named(graph);
    }
    pthread_mutex_unlock(&lock);
    if (graph != NULL) {
        free_kernels(graph->kernels);
        free(graph);
    }
    return ABI_SUCCESS;
}

/* ---- launching */

static struct named *resolve(const struct graph *graph, uint64_t generation) {
    uint32_t kernels = 0;
    for (const struct kernel *k = graph->kernels; k != NULL; k = k->next) {
        kernels++;
    }
    struct named *named = calloc(1, sizeof *named);
    uint32_t *ends = calloc(kernels + 1U, sizeof *ends);
    uint32_t *weights = NULL;
    uint32_t count = 0;
    uint32_t i = 0;
    bool whole = named != NULL && ends != NULL;
    for (const struct kernel *k = graph->kernels; whole && k != NULL; k = k->next) {
        uint32_t found[OBSERVER_MOST];
        uint32_t more = observer_resolve(k->words, k->count, found);
        uint32_t *larger = realloc(weights, (count + more + 1U) * sizeof *weights);
        whole = larger != NULL;
        if (whole) {
            weights = larger;
            memcpy(weights + count, found, more * sizeof *found);
            count += more;
            ends[i++] = count;
        }
    }
    if (!whole) {
        free(named);
        free(ends);
        free(weights);
        return NULL;
    }
    *named = (struct named){
        .generation = generation, .users = 1, .kernels = kernels, .ends = ends, .weights = weights};
    return named;
}

int graphs_launch(struct tierline_call *call, void *exec) {
    if (!observer_watching()) {
        return gate_ask(call);
    }
    uint64_t generation = observer_generation();
    pthread_mutex_lock(&lock);
    struct graph *graph = find(exec);
    if (graph != NULL && graph->named != NULL && graph->named->generation != generation) {
        forget_named(graph);
    }
    if (graph != NULL && graph->named == NULL) {
        graph->named = resolve(graph, generation);
    }
    struct named *named = graph == NULL ? NULL : graph->named;
    if (named != NULL) {
        named->users++;
    }
    pthread_mutex_unlock(&lock);
    if (named == NULL) {
        return gate_ask(call);
    }
    int verdict =
        observer_replay(call, named->generation, named->weights, named->ends, named->kernels);
    pthread_mutex_lock(&lock);
    release(named);
    pthread_mutex_unlock(&lock);
    return verdict;
}

void graphs_fork_before(void) {
    pthread_mutex_lock(&lock);
}

void graphs_fork_after(bool in_child) {
    while (in_child && graphs != NULL) {
        struct graph *graph = graphs;
        graphs = graph->next;
        forget_named(graph);
        free_kernels(graph->kernels);
        free(graph);
    }
    pthread_mutex_unlock(&lock);
}
