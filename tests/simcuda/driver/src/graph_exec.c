/* Instantiating graphs and updating them whole. See graph_exec.h. */
#include "graph_exec.h"

#include <stdlib.h>
#include <string.h>

#include "context.h"
#include "entry.h"
#include "objects.h"

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

CUresult IMPL(cuGraphExecUpdate)(CUgraphExec hGraphExec, CUgraph hGraph,
                                 CUgraphNode *hErrorNode_out,
                                 CUgraphExecUpdateResult *updateResult_out) {
    if (hErrorNode_out == NULL || updateResult_out == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUgraphExecUpdateResultInfo info = {0};
    CUresult result = IMPL(cuGraphExecUpdate_v2)(hGraphExec, hGraph, &info);
    *hErrorNode_out = info.errorNode;
    *updateResult_out = info.result;
    return result;
}
