/* Instantiating, updating and launching graphs. See graph_run.h.
 *
 * An executable graph is a flat list in which every node comes after what it depends on; the nodes
 * of child graphs are part of the list. A launch copies the work, so that parameters may be set,
 * and the executable destroyed, while it runs.
 *
 * One stream's worker runs a launch. It does whatever node is free, and passes by nodes that wait
 * for a flag or an event until nothing else is left to do: a branch that waits never holds up a
 * branch that it may be waiting for. (Branches do not overlap in time; a real device would overlap
 * them.)
 */
#include "graph_run.h"

#include <stdlib.h>
#include <string.h>

#include "entry.h"
#include "events.h"
#include "graphs.h"
#include "memops.h"
#include "nodes.h"
#include "objects.h"
#include "streams.h"

enum { PAUSE_NS = 100000 };

struct step {
    CUgraphNode origin; /* of the graph it was instantiated from; only compared, never followed */
    struct work *work;
    bool enabled;
    size_t *after;
    size_t after_count;
};

struct CUgraphExec_st {
    unsigned id;
    unsigned long long flags;
    struct step *steps;
    size_t count, capacity;
};

struct run {
    size_t count;
    struct run_step {
        struct work *work;   /* NULL: disabled */
        struct fence *fence; /* of an event's record or wait */
        size_t *after;
        size_t after_count;
        bool done;
        unsigned next; /* memory operations that are done */
    } * steps;
};

static unsigned next_exec = 1;

static void exec_free(CUgraphExec exec) {
    for (size_t i = 0; i < exec->count; i++) {
        work_free(exec->steps[i].work);
        free(exec->steps[i].after);
    }
    free(exec->steps);
    free(exec);
}

static bool exec_add(CUgraphExec exec, CUgraphNode origin, struct work *work, const size_t *after,
                     size_t after_count) {
    if (exec->count == exec->capacity) {
        size_t wanted = exec->capacity == 0 ? 16 : exec->capacity * 2;
        struct step *larger = realloc(exec->steps, wanted * sizeof *larger);
        if (larger == NULL) {
            work_free(work);
            return false;
        }
        exec->steps = larger;
        exec->capacity = wanted;
    }
    size_t *kept = calloc(after_count + 1, sizeof *kept);
    if (kept == NULL || work == NULL) {
        free(kept);
        work_free(work);
        return false;
    }
    if (after_count > 0) {
        memcpy(kept, after, after_count * sizeof *kept);
    }
    exec->steps[exec->count++] = (struct step){origin, work, true, kept, after_count};
    return true;
}

/* Appends the nodes of a graph; those without dependencies of their own follow `before`. */
static bool exec_append(CUgraphExec exec, CUgraph graph, const size_t *before,
                        size_t before_count) {
    CUgraphNode *order = graph_sorted(graph);
    size_t *place = calloc(graph->count + 1, sizeof *place); /* of order[i] in the list */
    size_t *after = calloc(graph->count + before_count + 1, sizeof *after);
    bool whole = order != NULL && place != NULL && after != NULL;
    for (size_t i = 0; i < graph->count && whole; i++) {
        CUgraphNode node = order[i];
        size_t after_count = 0;
        for (size_t e = 0; e < node->edge_count; e++) {
            for (size_t k = 0; k < i; k++) {
                if (order[k] == node->edges[e].from) {
                    after[after_count++] = place[k];
                }
            }
        }
        if (after_count == 0 && before_count > 0) {
            memcpy(after, before, before_count * sizeof *after);
            after_count = before_count;
        }
        if (node->work->kind == WORK_CHILD) {
            /* The child's nodes, then an empty one in the node's place that follows all of them. */
            size_t first = exec->count;
            whole = exec_append(exec, node->work->child, after, after_count);
            size_t inner = exec->count - first;
            size_t *all = calloc(inner + after_count + 1, sizeof *all);
            whole = whole && all != NULL;
            if (whole) {
                memcpy(all, after, after_count * sizeof *all);
                for (size_t k = 0; k < inner; k++) {
                    all[after_count + k] = first + k;
                }
                whole =
                    exec_add(exec, node, calloc(1, sizeof(struct work)), all, after_count + inner);
            }
            free(all);
        } else {
            whole = exec_add(exec, node, work_copy(node->work), after, after_count);
        }
        place[i] = exec->count - 1;
    }
    free(order);
    free(place);
    free(after);
    return whole;
}

CUresult IMPL(cuGraphInstantiateWithFlags)(CUgraphExec *phGraphExec, CUgraph hGraph,
                                           unsigned long long flags) {
    CUcontext ctx;
    CUresult result = context_current(&ctx);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    const unsigned long long known = CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH |
                                     CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD |
                                     CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY;
    if (phGraphExec == NULL || !object_is(hGraph, OBJECT_GRAPH)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if ((flags & ~known) != 0) {
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    CUgraphExec exec = calloc(1, sizeof *exec);
    if (exec == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    exec->flags = flags;
    graphs_lock();
    exec->id = next_exec++;
    bool whole = exec_append(exec, hGraph, NULL, 0);
    graphs_unlock();
    if (!whole || !object_add(exec, OBJECT_GRAPH_EXEC)) {
        exec_free(exec);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *phGraphExec = exec;
    return CUDA_SUCCESS;
}

CUresult IMPL(cuGraphInstantiateWithParams)(CUgraphExec *phGraphExec, CUgraph hGraph,
                                            CUDA_GRAPH_INSTANTIATE_PARAMS *instantiateParams) {
    if (instantiateParams == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUresult result =
        IMPL(cuGraphInstantiateWithFlags)(phGraphExec, hGraph, instantiateParams->flags);
    instantiateParams->hErrNode_out = NULL;
    instantiateParams->result_out =
        result == CUDA_SUCCESS ? CUDA_GRAPH_INSTANTIATE_SUCCESS : CUDA_GRAPH_INSTANTIATE_ERROR;
    return result;
}

CUresult IMPL(cuGraphInstantiate_v2)(CUgraphExec *phGraphExec, CUgraph hGraph,
                                     CUgraphNode *phErrorNode, char *logBuffer, size_t bufferSize) {
    if (phErrorNode != NULL) {
        *phErrorNode = NULL;
    }
    if (logBuffer != NULL && bufferSize > 0) {
        *logBuffer = '\0';
    }
    return IMPL(cuGraphInstantiateWithFlags)(phGraphExec, hGraph, 0);
}

CUresult IMPL(cuGraphInstantiate)(CUgraphExec *phGraphExec, CUgraph hGraph,
                                  CUgraphNode *phErrorNode, char *logBuffer, size_t bufferSize) {
    return IMPL(cuGraphInstantiate_v2)(phGraphExec, hGraph, phErrorNode, logBuffer, bufferSize);
}

CUresult IMPL(cuGraphExecDestroy)(CUgraphExec hGraphExec) {
    if (!driver_ready()) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    if (!object_remove(hGraphExec, OBJECT_GRAPH_EXEC)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    exec_free(hGraphExec);
    return CUDA_SUCCESS;
}

CUresult IMPL(cuGraphExecGetFlags)(CUgraphExec hGraphExec, cuuint64_t *flags) {
    if (flags == NULL || !object_is(hGraphExec, OBJECT_GRAPH_EXEC)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *flags = hGraphExec->flags;
    return CUDA_SUCCESS;
}

CUresult IMPL(cuGraphExecGetId)(CUgraphExec hGraphExec, unsigned int *graphId) {
    if (graphId == NULL || !object_is(hGraphExec, OBJECT_GRAPH_EXEC)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *graphId = hGraphExec->id;
    return CUDA_SUCCESS;
}

static struct step *step_of(CUgraphExec exec, CUgraphNode node) {
    if (!object_is(exec, OBJECT_GRAPH_EXEC)) {
        return NULL;
    }
    for (size_t i = 0; i < exec->count; i++) {
        if (exec->steps[i].origin == node) {
            return &exec->steps[i];
        }
    }
    return NULL;
}

static CUresult replace(CUgraphExec exec, CUgraphNode node, CUresult made, struct work *work) {
    if (made != CUDA_SUCCESS) {
        return made;
    }
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    graphs_lock();
    struct step *step = step_of(exec, node);
    if (step != NULL && step->work->kind == work->kind) {
        struct work *old = step->work;
        step->work = work;
        work = old;
        result = CUDA_SUCCESS;
    }
    graphs_unlock();
    work_free(work);
    return result;
}

CUresult IMPL(cuGraphExecKernelNodeSetParams_v2)(CUgraphExec hGraphExec, CUgraphNode hNode,
                                                 const CUDA_KERNEL_NODE_PARAMS *nodeParams) {
    struct work *work = NULL;
    CUresult made = work_of_kernel(nodeParams, &work);
    return replace(hGraphExec, hNode, made, work);
}

CUresult IMPL(cuGraphExecMemcpyNodeSetParams)(CUgraphExec hGraphExec, CUgraphNode hNode,
                                              const CUDA_MEMCPY3D *copyParams, CUcontext ctx) {
    struct work *work = NULL;
    CUresult made = context_check(ctx);
    if (made == CUDA_SUCCESS) {
        made = work_of_box(copyParams, &work);
    }
    return replace(hGraphExec, hNode, made, work);
}

CUresult IMPL(cuGraphExecMemsetNodeSetParams)(CUgraphExec hGraphExec, CUgraphNode hNode,
                                              const CUDA_MEMSET_NODE_PARAMS *memsetParams,
                                              CUcontext ctx) {
    struct work *work = NULL;
    CUresult made = context_check(ctx);
    if (made == CUDA_SUCCESS) {
        made = work_of_fill(memsetParams, &work);
    }
    return replace(hGraphExec, hNode, made, work);
}

CUresult IMPL(cuGraphExecHostNodeSetParams)(CUgraphExec hGraphExec, CUgraphNode hNode,
                                            const CUDA_HOST_NODE_PARAMS *nodeParams) {
    struct work *work = NULL;
    CUresult made = work_of_host(nodeParams, &work);
    return replace(hGraphExec, hNode, made, work);
}

CUresult IMPL(cuGraphExecBatchMemOpNodeSetParams)(CUgraphExec hGraphExec, CUgraphNode hNode,
                                                  const CUDA_BATCH_MEM_OP_NODE_PARAMS *nodeParams) {
    struct work *work = NULL;
    CUresult made = work_of_memops(nodeParams, &work);
    return replace(hGraphExec, hNode, made, work);
}

CUresult IMPL(cuGraphExecNodeSetParams)(CUgraphExec hGraphExec, CUgraphNode hNode,
                                        CUgraphNodeParams *nodeParams) {
    struct work *work = NULL;
    CUresult made = work_of_params(nodeParams, &work);
    return replace(hGraphExec, hNode, made, work);
}

CUresult IMPL(cuGraphNodeSetEnabled)(CUgraphExec hGraphExec, CUgraphNode hNode,
                                     unsigned int isEnabled) {
    graphs_lock();
    struct step *step = step_of(hGraphExec, hNode);
    bool fit = step != NULL && (step->work->kind == WORK_KERNEL || step->work->kind == WORK_COPY ||
                                step->work->kind == WORK_FILL);
    if (fit) {
        step->enabled = isEnabled != 0;
    }
    graphs_unlock();
    return fit ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult IMPL(cuGraphNodeGetEnabled)(CUgraphExec hGraphExec, CUgraphNode hNode,
                                     unsigned int *isEnabled) {
    graphs_lock();
    struct step *step = step_of(hGraphExec, hNode);
    if (step != NULL && isEnabled != NULL) {
        *isEnabled = step->enabled;
    }
    graphs_unlock();
    return step != NULL && isEnabled != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* Takes over the work of a graph of the same shape, node by node in order. */
CUresult IMPL(cuGraphExecUpdate_v2)(CUgraphExec hGraphExec, CUgraph hGraph,
                                    CUgraphExecUpdateResultInfo *resultInfo) {
    if (resultInfo == NULL || !object_is(hGraphExec, OBJECT_GRAPH_EXEC) ||
        !object_is(hGraph, OBJECT_GRAPH)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    memset(resultInfo, 0, sizeof *resultInfo);
    CUgraphExec fresh = calloc(1, sizeof *fresh);
    if (fresh == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    graphs_lock();
    bool whole = exec_append(fresh, hGraph, NULL, 0);
    bool same = whole && fresh->count == hGraphExec->count;
    for (size_t i = 0; same && i < fresh->count; i++) {
        const struct step *new_step = &fresh->steps[i];
        const struct step *old_step = &hGraphExec->steps[i];
        same = new_step->work->kind == old_step->work->kind &&
               new_step->after_count == old_step->after_count &&
               memcmp(new_step->after, old_step->after,
                      new_step->after_count * sizeof *new_step->after) == 0;
        if (!same) {
            resultInfo->errorNode = new_step->origin;
        }
    }
    for (size_t i = 0; same && i < fresh->count; i++) {
        struct work *old = hGraphExec->steps[i].work;
        hGraphExec->steps[i].work = fresh->steps[i].work;
        fresh->steps[i].work = old;
    }
    graphs_unlock();
    exec_free(fresh);
    resultInfo->result =
        same ? CU_GRAPH_EXEC_UPDATE_SUCCESS : CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
    return same    ? CUDA_SUCCESS
           : whole ? CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE
                   : CUDA_ERROR_OUT_OF_MEMORY;
}

void run_free(struct run *run) {
    if (run == NULL) {
        return;
    }
    for (size_t i = 0; i < run->count; i++) {
        struct run_step *step = &run->steps[i];
        /* A launch that was dropped must not leave anybody waiting for its records. */
        if (step->fence != NULL) {
            if (step->work->kind == WORK_EVENT_RECORD) {
                fence_complete(step->fence);
            }
            fence_release(step->fence);
        }
        work_free(step->work);
        free(step->after);
    }
    free(run->steps);
    free(run);
}

/* The events that a launch waits for and records are those of the moment of the launch. */
static bool run_bind_event(struct run_step *step) {
    CUevent event = step->work->event;
    if (!object_is(event, OBJECT_EVENT)) {
        return true;
    }
    if (step->work->kind == WORK_EVENT_WAIT) {
        step->fence = event_fence(event);
        return true;
    }
    step->fence = fence_new();
    if (step->fence != NULL) {
        event_set_fence(event, fence_hold(step->fence));
    }
    return step->fence != NULL;
}

static struct run *run_new(CUgraphExec exec) {
    struct run *run = calloc(1, sizeof *run);
    if (run == NULL) {
        return NULL;
    }
    run->steps = calloc(exec->count + 1, sizeof *run->steps);
    bool whole = run->steps != NULL;
    for (size_t i = 0; i < exec->count && whole; i++) {
        const struct step *step = &exec->steps[i];
        struct run_step *copy = &run->steps[i];
        run->count++;
        copy->after_count = step->after_count;
        copy->after = calloc(step->after_count + 1, sizeof *copy->after);
        copy->work = step->enabled ? work_copy(step->work) : NULL;
        whole = copy->after != NULL && (copy->work != NULL || !step->enabled);
        if (whole) {
            memcpy(copy->after, step->after, step->after_count * sizeof *copy->after);
        }
        if (whole && copy->work != NULL &&
            (copy->work->kind == WORK_EVENT_RECORD || copy->work->kind == WORK_EVENT_WAIT)) {
            whole = run_bind_event(copy);
        }
    }
    if (!whole) {
        run_free(run);
        run = NULL;
    }
    return run;
}

static bool step_is_free(const struct run *run, const struct run_step *step) {
    for (size_t i = 0; i < step->after_count; i++) {
        if (!run->steps[step->after[i]].done) {
            return false;
        }
    }
    return true;
}

/* Does a step, or as much of it as can be done without waiting. */
static CUresult step_try(CUcontext ctx, struct run_step *step) {
    CUresult result = CUDA_SUCCESS;
    step->done = true;
    if (step->work == NULL) {
        return CUDA_SUCCESS;
    }
    switch (step->work->kind) {
    case WORK_MEMOPS:
        result = memops_advance(ctx, &step->work->memops, &step->next);
        step->done = step->next == step->work->memops.count;
        break;
    case WORK_EVENT_WAIT:
        step->done = step->fence == NULL || fence_is_done(step->fence, NULL);
        break;
    case WORK_EVENT_RECORD:
        if (step->fence != NULL) {
            fence_complete(step->fence);
        }
        break;
    default:
        result = work_perform(ctx, step->work);
        break;
    }
    return result;
}

CUresult run_perform(CUcontext ctx, struct run *run) {
    size_t left = run->count;
    while (left > 0 && !context_is_over(ctx)) {
        const struct run_step *blocked = NULL;
        bool moved = false;
        for (size_t i = 0; i < run->count && !context_is_over(ctx); i++) {
            struct run_step *step = &run->steps[i];
            if (step->done || !step_is_free(run, step)) {
                continue;
            }
            CUresult result = step_try(ctx, step);
            if (result != CUDA_SUCCESS) {
                return result;
            }
            moved = moved || step->done;
            left -= step->done;
            if (!step->done && blocked == NULL) {
                blocked = step;
            }
        }
        if (moved || blocked == NULL) {
            continue;
        }
        if (blocked->work->kind == WORK_MEMOPS) {
            memops_sleep(&blocked->work->memops, blocked->next, PAUSE_NS);
        } else {
            machine_sleep_until(machine_now_ns() + PAUSE_NS);
        }
    }
    return CUDA_SUCCESS;
}

CUresult IMPL(cuGraphLaunch)(CUgraphExec hGraph, CUstream hStream) {
    CUstream stream;
    CUresult result = stream_resolve(hStream, &stream);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    graphs_lock();
    struct run *run = object_is(hGraph, OBJECT_GRAPH_EXEC) ? run_new(hGraph) : NULL;
    bool known = object_is(hGraph, OBJECT_GRAPH_EXEC);
    graphs_unlock();
    if (run == NULL) {
        return known ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_INVALID_VALUE;
    }
    struct work *work = calloc(1, sizeof *work);
    if (work == NULL) {
        run_free(run);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    work->kind = WORK_GRAPH;
    work->run = run;
    return stream_submit(stream, work, NULL);
}

CUresult IMPL(cuGraphUpload)(CUgraphExec hGraph, CUstream hStream) {
    CUstream stream;
    CUresult result = stream_resolve(hStream, &stream);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    return object_is(hGraph, OBJECT_GRAPH_EXEC) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
