/* See graph_hooks.h. Inside another hook, or in a process that is not active, each just calls the
 * next function. */
#include "entry/graph_hooks.h"

#include "driver/driver.h"
#include "entry/lifecycle.h"
#include "graphs/graphs.h"
#include "graphs/read.h"

/* The arguments of any of these calls but the graph. */
struct request {
    hook_function *next;
    void **exec;
    void *changed; /* executable */
    void **error_node;
    char *log;
    size_t log_bytes;
    unsigned long long flags;
    void *parameters;
    int *update;
};

static int instantiate(void *request, void *graph) {
    const struct request *r = request;
    return ((cuGraphInstantiate_v2_function *)r->next)(r->exec, graph, r->error_node, r->log,
                                                       r->log_bytes);
}

static int instantiate_flags(void *request, void *graph) {
    const struct request *r = request;
    return ((cuGraphInstantiateWithFlags_function *)r->next)(r->exec, graph, r->flags);
}

static int instantiate_params(void *request, void *graph) {
    const struct request *r = request;
    return ((cuGraphInstantiateWithParams_function *)r->next)(r->exec, graph, r->parameters);
}

static int update_v1(void *request, void *graph) {
    const struct request *r = request;
    return ((cuGraphExecUpdate_function *)r->next)(r->changed, graph, r->error_node, r->update);
}

static int update(void *request, void *graph) {
    const struct request *r = request;
    return ((cuGraphExecUpdate_v2_function *)r->next)(r->changed, graph, r->parameters);
}

static int with_gates(struct request *request, graphs_real *real, void *graph) {
    if (request->next == NULL) {
        return driver_missing();
    }
    if (!hook_enter()) {
        return real(request, graph);
    }
    int result = graphs_instantiate(graph, request->exec, real, request);
    hook_leave();
    return result;
}

static int with_twin(struct request *request, graphs_real *real, void *graph,
                     struct graphs_wrong wrong) {
    if (request->next == NULL) {
        return driver_missing();
    }
    if (!hook_enter()) {
        return real(request, graph);
    }
    int result = graphs_update(request->changed, graph, real, request, wrong);
    hook_leave();
    return result;
}

/* NOLINTNEXTLINE(readability-non-const-parameter) the driver writes there */
int handle_instantiate(enum hook hook, void **exec, void *graph, void **error_node, char *log,
                       size_t log_bytes) {
    struct request request = {.next = driver_next((int)hook),
                              .exec = exec,
                              .error_node = error_node,
                              .log = log,
                              .log_bytes = log_bytes};
    return with_gates(&request, instantiate, graph);
}

int handle_instantiate_flags(enum hook hook, void **exec, void *graph, unsigned long long flags) {
    struct request request = {.next = driver_next((int)hook), .exec = exec, .flags = flags};
    return with_gates(&request, instantiate_flags, graph);
}

int handle_instantiate_params(enum hook hook, void **exec, void *graph, void *parameters) {
    struct request request = {
        .next = driver_next((int)hook), .exec = exec, .parameters = parameters};
    return with_gates(&request, instantiate_params, graph);
}

/* NOLINTNEXTLINE(readability-non-const-parameter) the driver writes there */
int handle_update_v1(enum hook hook, void *exec, void *graph, void **error_node, int *result) {
    struct request request = {.next = driver_next((int)hook),
                              .changed = exec,
                              .error_node = error_node,
                              .update = result};
    return with_twin(&request, update_v1, graph, (struct graphs_wrong){.node = error_node});
}

int handle_update(enum hook hook, void *exec, void *graph, void *result) {
    struct request request = {
        .next = driver_next((int)hook), .changed = exec, .parameters = result};
    struct abi_update_result *wrong = result;
    struct graphs_wrong nodes = {0};
    if (wrong != NULL) {
        nodes = (struct graphs_wrong){&wrong->node, &wrong->from_node};
    }
    return with_twin(&request, update, graph, nodes);
}

void graphs_node_added(const void *node, const void *parameters) {
    const struct abi_any_node *any = parameters;
    if (any->type == ABI_NODE_CONDITIONAL) {
        view_note_conditional(node, any->as.conditional.graphs, any->as.conditional.count);
    }
}
