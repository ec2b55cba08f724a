/* See extend.h. */
#include "graphs/extend.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "driver/driver.h"
#include "graphs/clone.h"

enum { DEEPEST = 16, HOST_PORTABLE = 1, CAPTURE_RELAXED = 2, MOST_OPERATIONS = 5 };

/* A node of the program's graph and the clone's, at whatever depth. */
struct pair {
    const void *node;
    void *twin;
};

struct values {
    uint64_t published, consumed, arrived, permit;
    struct plan_gate *gates;
};

struct extension {
    void *clone;
    void *context;
    void **gates;       /* nodes of the clone */
    struct pair *pairs; /* by node */
    uint32_t pair_count, pair_room;
    /* Where the gates stand. */
    uint32_t node_count, edge_count, gate_count, added_count, replaced_count;
    struct plan_edge *edges; /* of the graph as it was */
    struct plan_edge *added;
    uint32_t *replaced;
    struct values values; /* to which they were set last */
    enum { STANDING, RESTING, MIXED } state;
};

/* ---- words that nobody waits for */

static uint64_t rest_words(void) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static void *words;
    cuMemHostAlloc_function *allocate = (cuMemHostAlloc_function *)driver_next(HOOK_cuMemHostAlloc);
    cuThreadExchangeStreamCaptureMode_function *exchange =
        (cuThreadExchangeStreamCaptureMode_function *)driver_next(
            USED_cuThreadExchangeStreamCaptureMode);
    pthread_mutex_lock(&lock);
    if (words == NULL && allocate != NULL && exchange != NULL) {
        /* A capture under way on this thread goes on. */
        int mode = CAPTURE_RELAXED;
        void *fresh = NULL;
        exchange(&mode);
        if (allocate(&fresh, 64, HOST_PORTABLE) == ABI_SUCCESS) {
            memset(fresh, 0, 64);
            words = fresh;
        }
        exchange(&mode);
    }
    void *found = words;
    pthread_mutex_unlock(&lock);
    return (uint64_t)(uintptr_t)found; /* one address space for host and device */
}

/* ---- gates */

/* Operations of one gate. At rest it lets everything pass, by words that nobody looks at. */
struct operations {
    uint64_t rest; /* 0: it does not rest */
    uint32_t count;
    struct abi_word_operation list[MOST_OPERATIONS];
};

static void add_write(struct operations *to, uint64_t address, uint32_t value) {
    to->list[to->count++] =
        (struct abi_word_operation){.operation = ABI_WRITE_VALUE_32,
                                    .address = to->rest == 0 ? address : to->rest + 32,
                                    .value = to->rest == 0 ? value : 0};
}

/* Without flags: until the word is at least the value. */
static void add_wait(struct operations *to, uint64_t address, uint32_t value) {
    to->list[to->count++] =
        (struct abi_word_operation){.operation = ABI_WAIT_VALUE_32,
                                    .address = to->rest == 0 ? address : to->rest,
                                    .value = to->rest == 0 ? value : 0};
}

static void find_operations(const struct plan_gate *gate, const struct values *values,
                            uint64_t rest, struct operations *out) {
    memset(out, 0, sizeof *out);
    out->rest = rest;
    if (gate->write > 0) {
        add_write(out, values->consumed, gate->write);
    }
    if (gate->wait > 0) {
        add_wait(out, values->published, gate->wait);
    }
    if (gate->stop > 0) {
        add_write(out, values->arrived, gate->stop);
        add_wait(out, values->permit, gate->stop);
        if (gate->again > 0) {
            add_wait(out, values->published, gate->again);
        }
    }
}

static bool add_gates(const struct extension *x, void *clone, void **gates) {
    cuGraphAddBatchMemOpNode_function *add =
        (cuGraphAddBatchMemOpNode_function *)driver_next(USED_cuGraphAddBatchMemOpNode);
    uint64_t rest = x->state == STANDING ? 0 : rest_words();
    bool whole = add != NULL && (x->state == STANDING || rest != 0);
    for (uint32_t g = 0; whole && g < x->gate_count; g++) {
        struct operations operations;
        find_operations(&x->values.gates[g], &x->values, rest, &operations);
        struct abi_words_node node = {
            .context = x->context, .count = operations.count, .operations = operations.list};
        whole = add(&gates[g], clone, NULL, 0, &node) == ABI_SUCCESS;
    }
    return whole;
}

static bool change_edges(const struct extension *x, void *clone, void *const *nodes,
                         void *const *gates, const struct abi_edge *data) {
    cuGraphAddDependencies_v2_function *add =
        (cuGraphAddDependencies_v2_function *)driver_next(USED_cuGraphAddDependencies_v2);
    cuGraphRemoveDependencies_v2_function *take =
        (cuGraphRemoveDependencies_v2_function *)driver_next(USED_cuGraphRemoveDependencies_v2);
    size_t most = x->added_count > x->replaced_count ? x->added_count : x->replaced_count;
    const void **from = calloc(most + 1, sizeof *from);
    const void **to = calloc(most + 1, sizeof *to);
    struct abi_edge *taken = calloc(most + 1, sizeof *taken);
    bool whole = add != NULL && take != NULL && from != NULL && to != NULL && taken != NULL;
    for (uint32_t i = 0; whole && i < x->replaced_count; i++) {
        const struct plan_edge *edge = &x->edges[x->replaced[i]];
        from[i] = nodes[edge->from];
        to[i] = nodes[edge->to];
        taken[i] = data[x->replaced[i]];
    }
    whole = whole && (x->replaced_count == 0 ||
                      take(clone, from, to, taken, x->replaced_count) == ABI_SUCCESS);
    for (uint32_t i = 0; whole && i < x->added_count; i++) {
        uint32_t a = x->added[i].from;
        uint32_t b = x->added[i].to;
        from[i] = a < x->node_count ? nodes[a] : gates[a - x->node_count];
        to[i] = b < x->node_count ? nodes[b] : gates[b - x->node_count];
    }
    whole =
        whole && (x->added_count == 0 || add(clone, from, to, NULL, x->added_count) == ABI_SUCCESS);
    free(from);
    free(to);
    free(taken);
    return whole;
}

/* ---- nodes and their twins */

static bool add_pair(struct extension *x, const void *node, void *twin) {
    if (x->pair_count == x->pair_room) {
        uint32_t room = x->pair_room * 2 + 64;
        struct pair *larger = realloc(x->pairs, room * sizeof *larger);
        if (larger == NULL) {
            return false;
        }
        x->pairs = larger;
        x->pair_room = room;
    }
    x->pairs[x->pair_count++] = (struct pair){node, twin};
    return true;
}

static void **nodes_of(void *graph, size_t *count) {
    cuGraphGetNodes_function *list = (cuGraphGetNodes_function *)driver_next(USED_cuGraphGetNodes);
    if (list == NULL || list(graph, NULL, count) != ABI_SUCCESS) {
        return NULL;
    }
    void **nodes = calloc(*count + 1, sizeof *nodes);
    if (nodes != NULL && *count > 0 && list(graph, nodes, count) != ABI_SUCCESS) {
        free(nodes);
        return NULL;
    }
    return nodes;
}

/* Pairs the nodes inside a child graph. They are listed in the order of their creation in both. */
/* NOLINTNEXTLINE(misc-no-recursion) child graphs nest, and DEEPEST bounds it */
static bool pair_child(struct extension *x, void *node, void *twin, int depth) {
    cuGraphNodeGetType_function *type_of =
        (cuGraphNodeGetType_function *)driver_next(USED_cuGraphNodeGetType);
    cuGraphChildGraphNodeGetGraph_function *child_of =
        (cuGraphChildGraphNodeGetGraph_function *)driver_next(USED_cuGraphChildGraphNodeGetGraph);
    int type = 0;
    void *child = NULL;
    void *child_twin = NULL;
    if (type_of == NULL || type_of(node, &type) != ABI_SUCCESS) {
        return false;
    }
    if (type != ABI_NODE_CHILD_GRAPH) {
        return true;
    }
    if (depth > DEEPEST || child_of == NULL || child_of(node, &child) != ABI_SUCCESS ||
        child_of(twin, &child_twin) != ABI_SUCCESS) {
        return false;
    }
    size_t count = 0;
    size_t twin_count = 0;
    void **nodes = nodes_of(child, &count);
    void **twins = nodes_of(child_twin, &twin_count);
    bool whole = nodes != NULL && twins != NULL && count == twin_count;
    for (size_t i = 0; whole && i < count; i++) {
        whole = add_pair(x, nodes[i], twins[i]) && pair_child(x, nodes[i], twins[i], depth + 1);
    }
    free(nodes);
    free(twins);
    return whole;
}

static int by_node(const void *one, const void *other) {
    uintptr_t a = (uintptr_t)((const struct pair *)one)->node;
    uintptr_t b = (uintptr_t)((const struct pair *)other)->node;
    return (a > b) - (a < b);
}

static bool pair_nodes(struct extension *x, const struct graph_view *view, void *const *twins) {
    bool whole = true;
    for (uint32_t v = 0; whole && v < view->node_count; v++) {
        whole = add_pair(x, view->nodes[v], twins[v]) && pair_child(x, view->nodes[v], twins[v], 1);
    }
    if (x->pair_count > 0) {
        qsort(x->pairs, x->pair_count, sizeof *x->pairs, by_node);
    }
    return whole;
}

void *extension_node(const struct extension *extension, void *node) {
    struct pair key = {.node = node};
    const struct pair *found =
        bsearch(&key, extension->pairs, extension->pair_count, sizeof *extension->pairs, by_node);
    return found == NULL ? node : found->twin;
}

/* ---- extensions */

static void *copy(const void *from, size_t bytes) {
    void *to = calloc(1, bytes + 1);
    return to == NULL || bytes == 0 ? to : memcpy(to, from, bytes);
}

static bool keep_shape(struct extension *x, const struct graph_view *view,
                       const struct graph_plan *plan) {
    x->node_count = view->node_count;
    x->edge_count = view->edge_count;
    x->gate_count = plan->gate_count;
    x->added_count = plan->added_count;
    x->replaced_count = plan->replaced_count;
    x->edges = copy(view->edges, view->edge_count * sizeof *x->edges);
    x->added = copy(plan->added, plan->added_count * sizeof *x->added);
    x->replaced = copy(plan->replaced, plan->replaced_count * sizeof *x->replaced);
    x->values.gates = copy(plan->gates, plan->gate_count * sizeof *x->values.gates);
    x->gates = calloc((size_t)plan->gate_count + 1, sizeof *x->gates);
    return x->edges != NULL && x->added != NULL && x->replaced != NULL && x->values.gates != NULL &&
           x->gates != NULL;
}

static void take_words(struct values *values, const struct arrangement *arrangement) {
    values->published = arrangement->published;
    values->consumed = arrangement->consumed;
    values->arrived = arrangement->arrived;
    values->permit = arrangement->permit;
}

struct extension *extension_new(void *graph, const struct graph_view *view,
                                const struct arrangement *arrangement) {
    void *context = (void *)(uintptr_t)driver_context(); /* NOLINT(performance-no-int-to-ptr) */
    if (view->fixed || arrangement->plan->gate_count == 0 || context == NULL) {
        return NULL;
    }
    struct extension *x = calloc(1, sizeof *x);
    void **twins = calloc((size_t)view->node_count + 1, sizeof *twins);
    bool whole = x != NULL && twins != NULL && keep_shape(x, view, arrangement->plan);
    if (whole) {
        x->context = context;
        take_words(&x->values, arrangement);
        x->clone = clone_make(graph, view->nodes, view->node_count, twins);
        whole = x->clone != NULL && pair_nodes(x, view, twins) &&
                add_gates(x, x->clone, x->gates) &&
                change_edges(x, x->clone, twins, x->gates, view->edge_data);
    }
    free(twins);
    if (!whole) {
        extension_free(x);
        return NULL;
    }
    return x;
}

void extension_free(struct extension *extension) {
    if (extension != NULL) {
        clone_destroy(extension->clone);
        free(extension->gates);
        free(extension->pairs);
        free(extension->edges);
        free(extension->added);
        free(extension->replaced);
        free(extension->values.gates);
        free(extension);
    }
}

void *extension_graph(const struct extension *extension) {
    return extension->clone;
}

bool extension_fits(const struct extension *extension, const struct arrangement *arrangement) {
    const struct graph_plan *plan = arrangement->plan;
    bool fits =
        plan->gate_count == extension->gate_count && plan->added_count == extension->added_count &&
        plan->replaced_count == extension->replaced_count &&
        memcmp(plan->added, extension->added, plan->added_count * sizeof *plan->added) == 0 &&
        memcmp(plan->replaced, extension->replaced,
               plan->replaced_count * sizeof *plan->replaced) == 0;
    for (uint32_t g = 0; fits && g < plan->gate_count; g++) {
        const struct plan_gate *now = &extension->values.gates[g];
        fits = (plan->gates[g].write > 0) == (now->write > 0) &&
               (plan->gates[g].wait > 0) == (now->wait > 0) &&
               (plan->gates[g].stop > 0) == (now->stop > 0) &&
               (plan->gates[g].again > 0) == (now->again > 0);
    }
    return fits;
}

static bool stands(const struct extension *x, const struct arrangement *arrangement) {
    if (arrangement == NULL || x->state != STANDING) {
        return arrangement == NULL && x->state == RESTING;
    }
    return x->values.published == arrangement->published &&
           x->values.consumed == arrangement->consumed &&
           x->values.arrived == arrangement->arrived && x->values.permit == arrangement->permit &&
           memcmp(x->values.gates, arrangement->plan->gates,
                  x->gate_count * sizeof *x->values.gates) == 0;
}

int extension_set(struct extension *extension, void *exec, const struct arrangement *arrangement) {
    struct extension *x = extension;
    cuGraphExecBatchMemOpNodeSetParams_function *set =
        (cuGraphExecBatchMemOpNodeSetParams_function *)driver_next(
            HOOK_cuGraphExecBatchMemOpNodeSetParams);
    if (stands(x, arrangement)) {
        return ABI_SUCCESS;
    }
    uint64_t rest = arrangement == NULL ? rest_words() : 0;
    if (set == NULL || (arrangement == NULL && rest == 0)) {
        return set == NULL ? ABI_NOT_FOUND : ABI_OUT_OF_MEMORY;
    }
    if (arrangement != NULL) {
        take_words(&x->values, arrangement);
        memcpy(x->values.gates, arrangement->plan->gates, x->gate_count * sizeof *x->values.gates);
    }
    x->state = MIXED;
    int result = ABI_SUCCESS;
    for (uint32_t g = 0; result == ABI_SUCCESS && g < x->gate_count; g++) {
        struct operations operations;
        find_operations(&x->values.gates[g], &x->values, rest, &operations);
        struct abi_words_node node = {
            .context = x->context, .count = operations.count, .operations = operations.list};
        result = set(exec, x->gates[g], &node);
    }
    if (result == ABI_SUCCESS) {
        x->state = arrangement == NULL ? RESTING : STANDING;
    }
    return result;
}

void *extension_twin(struct extension *extension, void *graph, const struct graph_view *view,
                     void ***nodes) {
    struct extension *x = extension;
    if (view->node_count != x->node_count || view->edge_count != x->edge_count ||
        memcmp(view->edges, x->edges, x->edge_count * sizeof *x->edges) != 0) {
        return NULL;
    }
    void **twins = calloc((size_t)x->node_count + 1, sizeof *twins);
    void **gates = calloc((size_t)x->gate_count + 1, sizeof *gates);
    void *clone = twins == NULL ? NULL : clone_make(graph, view->nodes, view->node_count, twins);
    bool whole = clone != NULL && gates != NULL && add_gates(x, clone, gates) &&
                 change_edges(x, clone, twins, gates, view->edge_data);
    free(gates);
    if (!whole) {
        free(twins);
        clone_destroy(clone);
        return NULL;
    }
    x->state = x->state == STANDING ? STANDING : MIXED; /* they rest only if the update succeeds */
    *nodes = twins;
    return clone;
}

void twins_name(void **wrong, void *const *twins, const struct graph_view *view) {
    for (uint32_t v = 0; wrong != NULL && *wrong != NULL && v <= view->node_count; v++) {
        if (v == view->node_count) {
            *wrong = NULL; /* a gate */
        } else if (twins[v] == *wrong) {
            *wrong = view->nodes[v];
            return;
        }
    }
}
