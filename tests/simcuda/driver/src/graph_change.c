/* Changing nodes of executable graphs, each named by the node of the graph that it came from. */
#include <string.h>

#include "context.h"
#include "entry.h"
#include "graph_exec.h"
#include "nodes.h"
#include "objects.h"

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

/* Neither how many operations a node has nor what they are can be changed. */
static bool same_operations(CUgraphExec exec, CUgraphNode node, const struct memops *memops) {
    graphs_lock();
    const struct step *step = step_of(exec, node);
    bool same = step != NULL && step->work->kind == WORK_MEMOPS &&
                step->work->memops.count == memops->count;
    for (unsigned i = 0; same && i < memops->count; i++) {
        same = step->work->memops.operations[i].operation == memops->operations[i].operation;
    }
    graphs_unlock();
    return same;
}

CUresult IMPL(cuGraphExecBatchMemOpNodeSetParams)(CUgraphExec hGraphExec, CUgraphNode hNode,
                                                  const CUDA_BATCH_MEM_OP_NODE_PARAMS *nodeParams) {
    struct work *work = NULL;
    CUresult made = work_of_memops(nodeParams, &work);
    if (made == CUDA_SUCCESS && !same_operations(hGraphExec, hNode, &work->memops)) {
        work_free(work);
        return CUDA_ERROR_INVALID_VALUE;
    }
    return replace(hGraphExec, hNode, made, work);
}

static CUresult set_event(CUgraphExec exec, CUgraphNode node, CUevent event, enum work_kind kind) {
    if (!object_is(event, OBJECT_EVENT)) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    struct work work = {.kind = kind, .event = event};
    struct work *kept = work_copy(&work);
    return replace(exec, node, kept == NULL ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS, kept);
}

CUresult IMPL(cuGraphExecEventRecordNodeSetEvent)(CUgraphExec hGraphExec, CUgraphNode hNode,
                                                  CUevent event) {
    return set_event(hGraphExec, hNode, event, WORK_EVENT_RECORD);
}

CUresult IMPL(cuGraphExecEventWaitNodeSetEvent)(CUgraphExec hGraphExec, CUgraphNode hNode,
                                                CUevent event) {
    return set_event(hGraphExec, hNode, event, WORK_EVENT_WAIT);
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
