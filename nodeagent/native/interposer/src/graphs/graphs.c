/* See graphs.h.
 *
 * What a launch says is found at the first launch, and again when other weights are watched or a
 * node names others: the gates are then set to what fits now. If what fits now would need gates at
 * other places, those that stand stay, as long as the weights they stand for are where they were;
 * otherwise they are put to rest, and everything that the graph reads is loose.
 *
 * Invariant: a launch never reaches the driver with gates of an arena that is gone.
 *
 * The table's lock is never held during a driver call or a gate. An executable's own lock is: while
 * its gates are set, and while the gates are asked where weights lie. It is not held while a launch
 * is in the gate.
 */
#include "graphs/graphs.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "driver/driver.h"
#include "graphs/clone.h"
#include "graphs/extend.h"
#include "graphs/marks.h"
#include "launches/captures.h"
#include "launches/gate.h"
#include "launches/timing.h"

enum { STALE = -1 }; /* no CUresult */

/* What a launch says. Shared by launches under way. */
struct said {
    atomic_uint users;
    const struct tl_graph_gates *gates;
    struct graph_names names;
    struct launch_plans plans;
};

struct graph {
    struct graph *next;
    const void *exec;
    bool follows;   /* it is replaced when weights move */
    uint32_t users; /* under the table's lock */
    pthread_mutex_t lock;
    /* Under its own lock. */
    struct graph_view *view; /* nodes are those that the driver knows; NULL: unknown */
    struct extension *extension;
    struct graph_marks *marks;
    struct arrangement *arrangement; /* to which the gates are set */
    struct said *said;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct graph *graphs;         /* a process has tens of them */
static atomic_uint extended, marked; /* how many have gates; how many can have marks */

/* ---- one graph */

static void release_said(struct said *said) {
    if (said != NULL && atomic_fetch_sub(&said->users, 1) == 1) {
        graph_names_free(&said->names);
        launch_plans_free(&said->plans);
        free(said);
    }
}

static void forget_said(struct graph *graph) {
    release_said(graph->said);
    graph->said = NULL;
}

static void drop_extension(struct graph *graph) {
    if (graph->extension != NULL) {
        extension_free(graph->extension);
        graph->extension = NULL;
        atomic_fetch_sub(&extended, 1);
    }
}

static void drop_marks(struct graph *graph) {
    if (graph->marks != NULL) {
        marks_free(graph->marks);
        graph->marks = NULL;
        atomic_fetch_sub(&marked, 1);
    }
}

static void free_graph(struct graph *graph) {
    if (graph != NULL) {
        forget_said(graph);
        drop_extension(graph);
        drop_marks(graph);
        arrangement_free(graph->arrangement);
        view_free(graph->view);
        pthread_mutex_destroy(&graph->lock);
        free(graph);
    }
}

static _Thread_local bool follow;

static struct graph *new_graph(void *described) {
    struct graph *graph = calloc(1, sizeof *graph);
    if (graph == NULL) {
        return NULL;
    }
    pthread_mutex_init(&graph->lock, NULL);
    graph->users = 1;
    graph->follows = follow;
    graph->view = view_read(described);
    return graph;
}

/* Gives a graph that is about to be instantiated its gates, if it needs any and can have them. */
static void extend(struct graph *graph, void *described) {
    const struct tl_graph_gates *gates = graph_gates();
    struct graph_names names;
    if (gates == NULL || !observer_watching() || graph->view == NULL ||
        !graph_names_find(graph->view->readers, observer_generation(), &names)) {
        return;
    }
    struct arrangement *arrangement = arrange(gates, graph->view, &names);
    graph_names_free(&names);
    if (arrangement == NULL) {
        return;
    }
    graph->extension = extension_new(described, graph->view, arrangement);
    if (graph->extension == NULL) {
        arrangement_free(arrangement);
        return;
    }
    graph->arrangement = arrangement;
    atomic_fetch_add(&extended, 1);
}

/* From now on its nodes are those of the clone that was instantiated. */
static void rename_nodes(struct graph *graph) {
    struct graph_view *view = graph->view;
    for (uint32_t v = 0; graph->extension != NULL && v < view->node_count; v++) {
        view->nodes[v] = extension_node(graph->extension, view->nodes[v]);
    }
    struct graph_reader *reader = graph->extension == NULL ? NULL : view->readers;
    for (; reader != NULL; reader = reader->next) {
        reader->node =
            extension_node(graph->extension, (void *)(uintptr_t)reader->node); /* NOLINT */
    }
}

/* ---- the table */

static struct graph **find(const void *exec) {
    struct graph **at = &graphs;
    while (*at != NULL && (*at)->exec != exec) {
        at = &(*at)->next;
    }
    return at;
}

static struct graph *hold(const void *exec) {
    pthread_mutex_lock(&lock);
    struct graph *graph = *find(exec);
    if (graph != NULL) {
        graph->users++;
    }
    pthread_mutex_unlock(&lock);
    return graph;
}

static void let_go(struct graph *graph) {
    pthread_mutex_lock(&lock);
    bool last = graph != NULL && --graph->users == 0;
    pthread_mutex_unlock(&lock);
    if (last) {
        free_graph(graph);
    }
}

static struct graph *take_out(const void *exec) {
    pthread_mutex_lock(&lock);
    struct graph **at = find(exec);
    struct graph *graph = *at;
    if (graph != NULL) {
        *at = graph->next;
    }
    pthread_mutex_unlock(&lock);
    return graph;
}

int graphs_destroy(void *exec) {
    let_go(take_out(exec));
    return ABI_SUCCESS;
}

int graphs_instantiate(void *described, void **exec, graphs_real *real, void *request) {
    struct graph *graph = new_graph(described);
    int result = ABI_OUT_OF_MEMORY;
    if (graph != NULL) {
        extend(graph, described);
    }
    if (graph != NULL && graph->extension != NULL) {
        result = real(request, extension_graph(graph->extension));
        if (result != ABI_SUCCESS) {
            drop_extension(graph);
            arrangement_free(graph->arrangement);
            graph->arrangement = NULL;
        }
    }
    if (graph == NULL || graph->extension == NULL) {
        result = real(request, described);
    }
    if (result != ABI_SUCCESS || graph == NULL) {
        free_graph(graph);
        return result;
    }
    rename_nodes(graph);
    graph->marks = graph->extension == NULL ? marks_keep(described, graph->view) : NULL;
    atomic_fetch_add(&marked, graph->marks != NULL);
    let_go(take_out(*exec)); /* of an executable that went unseen, with its context */
    pthread_mutex_lock(&lock);
    graph->exec = *exec;
    graph->next = graphs;
    graphs = graph;
    pthread_mutex_unlock(&lock);
    return result;
}

/* ---- changes */

void *graphs_node(void *exec, void *node) {
    bool any = atomic_load(&extended) > 0 || atomic_load(&marked) > 0;
    struct graph *graph = any ? hold(exec) : NULL;
    if (graph == NULL) {
        return node;
    }
    pthread_mutex_lock(&graph->lock);
    drop_marks(graph); /* it is about to be another graph */
    void *known = graph->extension == NULL ? node : extension_node(graph->extension, node);
    pthread_mutex_unlock(&graph->lock);
    let_go(graph);
    return known;
}

/* Takes over what another graph of the same shape names; its nodes are known by these handles. */
static void take_readers(struct graph *graph, struct graph_view *other) {
    struct graph_view *view = graph->view;
    readers_free(view->readers);
    view->readers = other->readers;
    other->readers = NULL;
    for (struct graph_reader *r = view->readers; r != NULL; r = r->next) {
        if (r->top < other->node_count && other->nodes[r->top] == r->node) {
            r->node = r->top < view->node_count ? view->nodes[r->top] : r->node;
        }
    }
}

int graphs_update(void *exec, void *described, graphs_real *real, void *request,
                  struct graphs_wrong wrong) {
    struct graph *graph = hold(exec);
    struct graph_view *view = graph == NULL ? NULL : view_read(described);
    if (graph == NULL) {
        return real(request, described);
    }
    pthread_mutex_lock(&graph->lock);
    void **twins = NULL;
    void *twin = view != NULL && graph->extension != NULL
                     ? extension_twin(graph->extension, described, view, &twins)
                     : NULL;
    int result = real(request, twin == NULL ? described : twin);
    if (result != ABI_SUCCESS && twin != NULL) {
        twins_name(wrong.node, twins, view);
        twins_name(wrong.from_node, twins, view);
    }
    if (result == ABI_SUCCESS) {
        forget_said(graph);
        drop_marks(graph);
        if (view != NULL && graph->view != NULL && view->node_count == graph->view->node_count) {
            take_readers(graph, view);
        } else {
            view_free(graph->view);
            graph->view = view;
            view = NULL;
        }
    }
    pthread_mutex_unlock(&graph->lock);
    clone_destroy(twin);
    free(twins);
    view_free(view);
    let_go(graph);
    return result;
}

/* Puts readers in the place of those of one node: of an inner one, or of all of an outer one. */
static void replace(struct graph *graph, const void *node, uint32_t top, bool outer,
                    struct graph_reader *fresh) {
    struct graph_reader **at = &graph->view->readers;
    while (*at != NULL && (outer ? (*at)->top != top : (*at)->node != node)) {
        at = &(*at)->next;
    }
    struct graph_reader *old = NULL;
    struct graph_reader **old_tail = &old;
    while (*at != NULL && (outer ? (*at)->top == top : (*at)->node == node)) {
        *old_tail = *at;
        *at = (*at)->next;
        old_tail = &(*old_tail)->next;
        *old_tail = NULL;
    }
    if (!readers_name_the_same(old, fresh)) {
        forget_said(graph);
    }
    struct graph_reader *rest = *at;
    *at = fresh;
    while (*at != NULL) {
        at = &(*at)->next;
    }
    *at = rest;
    readers_free(old);
}

/* The outermost node in which a node lies. */
static uint32_t top_of(const struct graph *graph, const void *node) {
    for (const struct graph_reader *r = graph->view->readers; r != NULL; r = r->next) {
        if (r->node == node) {
            return r->top;
        }
    }
    uint32_t place = view_place(graph->view, node);
    return place < graph->view->node_count ? place : NO_TOP;
}

static void change(void *exec, void *node, const struct abi_any_node *to, bool has_kernel) {
    struct graph *graph = hold(exec);
    if (graph == NULL) {
        return;
    }
    pthread_mutex_lock(&graph->lock);
    if (graph->view != NULL) {
        uint32_t top = top_of(graph, node);
        if (to->type == ABI_NODE_KERNEL) {
            replace(graph, node, top, false,
                    reader_of_kernel(node, top, &to->as.kernel, has_kernel));
        } else if (to->type == ABI_NODE_COPY) {
            replace(graph, node, top, false, reader_of_copy(node, top, &to->as.copy.copy));
        } else if (to->type == ABI_NODE_CHILD_GRAPH) {
            replace(graph, node, top, true, readers_of_child(to->as.child_graph, top));
        }
    }
    pthread_mutex_unlock(&graph->lock);
    let_go(graph);
}

void graphs_kernel_changed(void *exec, void *node, const void *parameters, bool has_kernel) {
    const struct abi_kernel_node *kernel = parameters;
    struct abi_any_node any = {.type = ABI_NODE_KERNEL};
    any.as.kernel.function = kernel->function;
    any.as.kernel.parameters = kernel->parameters;
    any.as.kernel.extra = kernel->extra;
    any.as.kernel.kernel = has_kernel ? kernel->kernel : NULL;
    change(exec, node, &any, has_kernel);
}

void graphs_copy_changed(void *exec, void *node, const void *parameters) {
    struct abi_any_node any = {.type = ABI_NODE_COPY};
    any.as.copy.copy = *(const struct abi_copy3d *)parameters;
    change(exec, node, &any, false);
}

void graphs_child_changed(void *exec, void *node, void *graph) {
    struct abi_any_node any = {.type = ABI_NODE_CHILD_GRAPH, .as.child_graph = graph};
    change(exec, node, &any, false);
}

void graphs_any_node_changed(void *exec, void *node, const void *parameters) {
    change(exec, node, parameters, true);
}

/* ---- launching */

/* Sets the gates to what the graph names now. Returns a CUresult. */
static int set_gates(struct graph *graph, void *exec, const struct said *said) {
    struct arrangement *fresh =
        said->gates == NULL ? NULL : arrange(said->gates, graph->view, &said->names);
    if (fresh != NULL && extension_fits(graph->extension, fresh)) {
        arrangement_free(graph->arrangement);
        graph->arrangement = fresh;
        return extension_set(graph->extension, exec, fresh);
    }
    arrangement_free(fresh);
    if (said->gates == NULL || graph->arrangement == NULL ||
        graph->arrangement->generation != said->names.generation) {
        arrangement_free(graph->arrangement);
        graph->arrangement = NULL;
    }
    return extension_set(graph->extension, exec, graph->arrangement);
}

/* Finds out what a launch says, under the graph's lock. Returns a CUresult. */
static int prepare(struct graph *graph, void *exec) {
    const struct tl_graph_gates *gates = graph_gates();
    uint64_t generation = observer_generation();
    if (graph->said != NULL && graph->said->gates == gates &&
        graph->said->names.generation == generation) {
        return ABI_SUCCESS;
    }
    forget_said(graph);
    if (graph->view == NULL && gates != NULL) {
        return ABI_NOT_SUPPORTED; /* it may read anything */
    }
    struct said *said = calloc(1, sizeof *said);
    if (said == NULL || !graph_names_find(graph->view == NULL ? NULL : graph->view->readers,
                                          generation, &said->names)) {
        free(said);
        return ABI_OUT_OF_MEMORY;
    }
    said->users = 1;
    said->gates = gates;
    int result = ABI_SUCCESS;
    if (graph->extension != NULL) {
        result = set_gates(graph, exec, said);
    }
    if (result == ABI_SUCCESS && gates != NULL &&
        !launch_plans_make(gates, &said->names, graph->arrangement, &said->plans)) {
        result = ABI_OUT_OF_MEMORY;
    }
    if (result != ABI_SUCCESS) {
        release_said(said);
        return result;
    }
    graph->said = said;
    return ABI_SUCCESS;
}

/* A launch that is captured becomes part of another graph, which gets gates of its own. */
static int capture(struct tierline_call *call, struct graph *graph, void *exec) {
    forget_said(graph);
    arrangement_free(graph->arrangement);
    graph->arrangement = NULL;
    int result = extension_set(graph->extension, exec, NULL);
    call->captured = true;
    return result;
}

/* STALE if other weights are watched by now, with nothing done. */
static int launch(struct tierline_call *call, struct graph *graph, const struct said *said,
                  void **exec) {
    const struct graph_names *names = &said->names;
    bool *first = timing_on() ? calloc((size_t)names->reader_count + 1, sizeof *first) : NULL;
    uint64_t ordinal = 0;
    call->weights = names->distinct;
    call->weight_count = names->distinct_count;
    call->generation = names->generation;
    call->graph = true;
    int verdict = gate_ask(call);
    if (verdict == ABI_SUCCESS && names->generation != observer_generation()) {
        gate_done(call);
        call->weight_count = 0;
        call->graph = false;
        verdict = STALE;
    }
    if (verdict == ABI_SUCCESS) {
        ordinal = observer_replayed(names->generation, names->weights, names->ends,
                                    names->reader_count, first);
    }
    if (verdict == ABI_SUCCESS && said->plans.count > 0) {
        verdict = said->gates->launch(said->plans.plans, said->plans.count, call->stream,
                                      call->per_thread);
        if (verdict != ABI_SUCCESS) {
            gate_done(call);
        }
    }
    if (verdict == ABI_SUCCESS && first != NULL) {
        pthread_mutex_lock(&graph->lock);
        void *timed = marks_time(graph->marks, graph->view, names, first, ordinal, call);
        *exec = timed == NULL ? *exec : timed;
        pthread_mutex_unlock(&graph->lock);
    }
    free(first);
    return verdict;
}

/* One attempt, with what the graph says now. */
static int try_launch(struct tierline_call *call, struct graph *graph, void **exec) {
    bool watching = observer_watching();
    struct said *said = NULL;
    pthread_mutex_lock(&graph->lock);
    int verdict = ABI_SUCCESS;
    if (graph->extension != NULL && captures_now(call->stream, call->per_thread)) {
        verdict = capture(call, graph, *exec);
    } else {
        verdict = prepare(graph, *exec);
        said = verdict == ABI_SUCCESS && watching ? graph->said : NULL;
    }
    if (said != NULL) {
        atomic_fetch_add(&said->users, 1);
    }
    pthread_mutex_unlock(&graph->lock);
    if (verdict == ABI_SUCCESS) {
        verdict = said == NULL ? gate_ask(call) : launch(call, graph, said, exec);
    }
    release_said(said);
    return verdict;
}

int graphs_launch(struct tierline_call *call, void **exec) {
    bool needed = observer_watching() || atomic_load(&extended) > 0;
    struct graph *graph = needed ? hold(*exec) : NULL;
    if (graph == NULL) {
        return gate_ask(call);
    }
    int verdict = STALE;
    while (verdict == STALE) {
        verdict = try_launch(call, graph, exec);
    }
    let_go(graph);
    return verdict;
}

int graphs_launched(struct tierline_call *call, int result) {
    call->launched = result == ABI_SUCCESS;
    return result;
}

/* ---- what the program's own graphs name */

TIERLINE_EXPORT void tierline_graphs_follow(bool weights) {
    follow = weights;
}

/* All executables that stay as they are when weights move, each held. NULL: none, or no memory. */
static struct graph **hold_fixed(uint32_t *count) {
    pthread_mutex_lock(&lock);
    uint32_t all = 0;
    for (const struct graph *graph = graphs; graph != NULL; graph = graph->next) {
        all += !graph->follows;
    }
    struct graph **held = all == 0 ? NULL : calloc(all, sizeof(struct graph *));
    *count = 0;
    for (struct graph *graph = graphs; held != NULL && graph != NULL; graph = graph->next) {
        if (!graph->follows) {
            graph->users++;
            held[(*count)++] = graph;
        }
    }
    pthread_mutex_unlock(&lock);
    return held;
}

/* Weights of several graphs. */
struct named {
    uint32_t *weights;
    uint32_t count;
};

static void add_named(struct graph *graph, struct named *named) {
    struct graph_names names;
    pthread_mutex_lock(&graph->lock);
    bool known = graph->view != NULL &&
                 graph_names_find(graph->view->readers, observer_generation(), &names);
    pthread_mutex_unlock(&graph->lock);
    if (!known) {
        return;
    }
    size_t count = (size_t)named->count + names.distinct_count + 1;
    uint32_t *larger = realloc(named->weights, count * sizeof *larger);
    if (larger != NULL) {
        named->weights = larger;
        memcpy(larger + named->count, names.distinct, names.distinct_count * sizeof *larger);
        named->count += names.distinct_count;
    }
    graph_names_free(&names);
}

TIERLINE_EXPORT uint32_t tierline_graphs_name(uint32_t *out, uint32_t capacity) {
    uint32_t held_count = 0;
    struct graph **held = hold_fixed(&held_count);
    struct named named = {0};
    for (uint32_t i = 0; i < held_count; i++) {
        add_named(held[i], &named);
        let_go(held[i]);
    }
    free((void *)held);
    if (named.count > 0) {
        qsort(named.weights, named.count, sizeof *named.weights, weights_ascending);
    }
    uint32_t count = 0;
    for (uint32_t i = 0; i < named.count; i++) {
        uint32_t shown = observer_shown(named.weights[i]);
        if (shown == UINT32_MAX || (i > 0 && named.weights[i] == named.weights[i - 1])) {
            continue;
        }
        if (count < capacity) {
            out[count] = shown;
        }
        count++;
    }
    free(named.weights);
    return count;
}

void graphs_fork_before(void) {
    pthread_mutex_lock(&lock);
}

/* The child has no driver, and other threads' locks would stay locked: all of it is left alone. */
void graphs_fork_after(bool in_child) {
    if (in_child) {
        graphs = NULL;
        atomic_store(&extended, 0);
        atomic_store(&marked, 0);
    }
    pthread_mutex_unlock(&lock);
}
