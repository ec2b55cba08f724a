/* Node parameters. See nodes.h. A node's kind never changes; setting parameters replaces its work.
 */
#include "nodes.h"

#include <stdlib.h>
#include <string.h>

#include "box.h"
#include "context.h"
#include "entry.h"
#include "graphs.h"
#include "launches.h"
#include "modules.h"
#include "objects.h"
#include "transfers.h"

static CUresult keep(const struct work *work, struct work **kept) {
    *kept = work_copy(work);
    return *kept == NULL ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

CUresult work_of_kernel(const CUDA_KERNEL_NODE_PARAMS *params, struct work **work) {
    if (params == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    struct CUfunc_st *function =
        function_of(params->func != NULL ? params->func : (CUfunction)params->kern);
    if (function == NULL) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    struct work made = {
        .kind = WORK_KERNEL,
        .launch = {.function = function,
                   .is_kernel = function->library != NULL,
                   .builtin = function->builtin,
                   .grid = {params->gridDimX, params->gridDimY, params->gridDimZ},
                   .block = {params->blockDimX, params->blockDimY, params->blockDimZ},
                   .shared_bytes = params->sharedMemBytes}};
    CUresult result = launch_pack(&made.launch, params->kernelParams, params->extra);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    result = keep(&made, work);
    free(made.launch.parameters);
    free(made.launch.pointers);
    return result;
}

CUresult work_of_box(const CUDA_MEMCPY3D *params, struct work **work) {
    struct work made = {.kind = WORK_COPY};
    CUresult result = box_to_copy(params, &made.copy);
    return result == CUDA_SUCCESS ? keep(&made, work) : result;
}

CUresult work_of_fill(const CUDA_MEMSET_NODE_PARAMS *params, struct work **work) {
    if (params == NULL ||
        (params->elementSize != 1 && params->elementSize != 2 && params->elementSize != 4)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    struct work made = {.kind = WORK_FILL,
                        .fill = {.target = params->dst,
                                 .pitch = params->pitch,
                                 .value = params->value,
                                 .element_bytes = params->elementSize,
                                 .width = params->width,
                                 .height = params->height}};
    return keep(&made, work);
}

CUresult work_of_host(const CUDA_HOST_NODE_PARAMS *params, struct work **work) {
    if (params == NULL || params->fn == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    struct work made = {.kind = WORK_HOST, .host = {params->fn, params->userData}};
    return keep(&made, work);
}

CUresult work_of_memops(const CUDA_BATCH_MEM_OP_NODE_PARAMS *params, struct work **work) {
    if (params == NULL || params->paramArray == NULL || params->count == 0 || params->count > 256 ||
        params->flags != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    struct work made = {.kind = WORK_MEMOPS, .memops = {params->paramArray, params->count}};
    return keep(&made, work);
}

CUresult work_of_params(const CUgraphNodeParams *params, struct work **work) {
    if (params == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    struct work made = {.kind = WORK_EMPTY};
    switch (params->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL: {
        CUDA_KERNEL_NODE_PARAMS kernel = {
            params->kernel.func,      params->kernel.gridDimX,       params->kernel.gridDimY,
            params->kernel.gridDimZ,  params->kernel.blockDimX,      params->kernel.blockDimY,
            params->kernel.blockDimZ, params->kernel.sharedMemBytes, params->kernel.kernelParams,
            params->kernel.extra,     params->kernel.kern,           params->kernel.ctx};
        return work_of_kernel(&kernel, work);
    }
    case CU_GRAPH_NODE_TYPE_MEMCPY:
        return work_of_box(&params->memcpy.copyParams, work);
    case CU_GRAPH_NODE_TYPE_MEMSET: {
        CUDA_MEMSET_NODE_PARAMS fill = {params->memset.dst,   params->memset.pitch,
                                        params->memset.value, params->memset.elementSize,
                                        params->memset.width, params->memset.height};
        return work_of_fill(&fill, work);
    }
    case CU_GRAPH_NODE_TYPE_HOST: {
        CUDA_HOST_NODE_PARAMS host = {params->host.fn, params->host.userData};
        return work_of_host(&host, work);
    }
    case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP: {
        CUDA_BATCH_MEM_OP_NODE_PARAMS memops = {params->memOp.ctx, params->memOp.count,
                                                params->memOp.paramArray, params->memOp.flags};
        return work_of_memops(&memops, work);
    }
    case CU_GRAPH_NODE_TYPE_EMPTY:
        return keep(&made, work);
    case CU_GRAPH_NODE_TYPE_GRAPH:
        made.kind = WORK_CHILD;
        made.child = params->graph.graph;
        return object_is(made.child, OBJECT_GRAPH) ? keep(&made, work) : CUDA_ERROR_INVALID_VALUE;
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
        made.kind =
            params->type == CU_GRAPH_NODE_TYPE_WAIT_EVENT ? WORK_EVENT_WAIT : WORK_EVENT_RECORD;
        made.event = params->eventWait.event; /* both unions members hold just the event */
        return object_is(made.event, OBJECT_EVENT) ? keep(&made, work) : CUDA_ERROR_INVALID_HANDLE;
    default:
        return CUDA_ERROR_NOT_SUPPORTED;
    }
}

static CUresult add(CUgraphNode *phGraphNode, CUgraph graph, const CUgraphNode *after,
                    const CUgraphEdgeData *data, size_t count, CUresult made, struct work *work) {
    if (made != CUDA_SUCCESS) {
        return made;
    }
    graphs_lock();
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    if (phGraphNode == NULL || !object_is(graph, OBJECT_GRAPH)) {
        work_free(work);
    } else {
        result = graph_add(graph, work, after, data, count, phGraphNode);
    }
    graphs_unlock();
    return result;
}

CUresult IMPL(cuGraphAddKernelNode_v2)(CUgraphNode *phGraphNode, CUgraph hGraph,
                                       const CUgraphNode *dependencies, size_t numDependencies,
                                       const CUDA_KERNEL_NODE_PARAMS *nodeParams) {
    struct work *work = NULL;
    CUresult made = work_of_kernel(nodeParams, &work);
    return add(phGraphNode, hGraph, dependencies, NULL, numDependencies, made, work);
}

static CUDA_KERNEL_NODE_PARAMS kernel_widened(const CUDA_KERNEL_NODE_PARAMS_v1 *old) {
    return (CUDA_KERNEL_NODE_PARAMS){
        old->func,         old->gridDimX,  old->gridDimY,  old->gridDimZ,
        old->blockDimX,    old->blockDimY, old->blockDimZ, old->sharedMemBytes,
        old->kernelParams, old->extra,     NULL,           NULL};
}

CUresult IMPL(cuGraphAddKernelNode)(CUgraphNode *phGraphNode, CUgraph hGraph,
                                    const CUgraphNode *dependencies, size_t numDependencies,
                                    const CUDA_KERNEL_NODE_PARAMS_v1 *nodeParams) {
    if (nodeParams == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUDA_KERNEL_NODE_PARAMS params = kernel_widened(nodeParams);
    return IMPL(cuGraphAddKernelNode_v2)(phGraphNode, hGraph, dependencies, numDependencies,
                                         &params);
}

CUresult IMPL(cuGraphAddMemcpyNode)(CUgraphNode *phGraphNode, CUgraph hGraph,
                                    const CUgraphNode *dependencies, size_t numDependencies,
                                    const CUDA_MEMCPY3D *copyParams, CUcontext ctx) {
    struct work *work = NULL;
    CUresult made = context_check(ctx);
    if (made == CUDA_SUCCESS) {
        made = work_of_box(copyParams, &work);
    }
    if (made == CUDA_SUCCESS) {
        made = copy_check(ctx, &work->copy);
    }
    if (made != CUDA_SUCCESS) {
        work_free(work);
    }
    return add(phGraphNode, hGraph, dependencies, NULL, numDependencies, made, work);
}

CUresult IMPL(cuGraphAddMemsetNode)(CUgraphNode *phGraphNode, CUgraph hGraph,
                                    const CUgraphNode *dependencies, size_t numDependencies,
                                    const CUDA_MEMSET_NODE_PARAMS *memsetParams, CUcontext ctx) {
    struct work *work = NULL;
    CUresult made = context_check(ctx);
    if (made == CUDA_SUCCESS) {
        made = work_of_fill(memsetParams, &work);
    }
    if (made == CUDA_SUCCESS) {
        made = fill_check(ctx, &work->fill);
    }
    if (made != CUDA_SUCCESS) {
        work_free(work);
    }
    return add(phGraphNode, hGraph, dependencies, NULL, numDependencies, made, work);
}

CUresult IMPL(cuGraphAddHostNode)(CUgraphNode *phGraphNode, CUgraph hGraph,
                                  const CUgraphNode *dependencies, size_t numDependencies,
                                  const CUDA_HOST_NODE_PARAMS *nodeParams) {
    struct work *work = NULL;
    CUresult made = work_of_host(nodeParams, &work);
    return add(phGraphNode, hGraph, dependencies, NULL, numDependencies, made, work);
}

CUresult IMPL(cuGraphAddBatchMemOpNode)(CUgraphNode *phGraphNode, CUgraph hGraph,
                                        const CUgraphNode *dependencies, size_t numDependencies,
                                        const CUDA_BATCH_MEM_OP_NODE_PARAMS *nodeParams) {
    struct work *work = NULL;
    CUresult made = work_of_memops(nodeParams, &work);
    return add(phGraphNode, hGraph, dependencies, NULL, numDependencies, made, work);
}

static CUresult add_params(CUgraphNode *phGraphNode, CUgraph graph, const CUgraphNode *after,
                           const CUgraphEdgeData *data, size_t count,
                           const CUgraphNodeParams *params) {
    struct work *work = NULL;
    CUresult made = work_of_params(params, &work);
    return add(phGraphNode, graph, after, data, count, made, work);
}

CUresult IMPL(cuGraphAddNode_v2)(CUgraphNode *phGraphNode, CUgraph hGraph,
                                 const CUgraphNode *dependencies,
                                 const CUgraphEdgeData *dependencyData, size_t numDependencies,
                                 CUgraphNodeParams *nodeParams) {
    return add_params(phGraphNode, hGraph, dependencies, dependencyData, numDependencies,
                      nodeParams);
}

CUresult IMPL(cuGraphAddNode)(CUgraphNode *phGraphNode, CUgraph hGraph,
                              const CUgraphNode *dependencies, size_t numDependencies,
                              CUgraphNodeParams *nodeParams) {
    return add_params(phGraphNode, hGraph, dependencies, NULL, numDependencies, nodeParams);
}

CUresult IMPL(cuGraphAddEmptyNode)(CUgraphNode *phGraphNode, CUgraph hGraph,
                                   const CUgraphNode *dependencies, size_t numDependencies) {
    CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_EMPTY};
    return add_params(phGraphNode, hGraph, dependencies, NULL, numDependencies, &params);
}

CUresult IMPL(cuGraphAddChildGraphNode)(CUgraphNode *phGraphNode, CUgraph hGraph,
                                        const CUgraphNode *dependencies, size_t numDependencies,
                                        CUgraph childGraph) {
    CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_GRAPH};
    params.graph.graph = childGraph;
    return add_params(phGraphNode, hGraph, dependencies, NULL, numDependencies, &params);
}

CUresult IMPL(cuGraphAddEventRecordNode)(CUgraphNode *phGraphNode, CUgraph hGraph,
                                         const CUgraphNode *dependencies, size_t numDependencies,
                                         CUevent event) {
    CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_EVENT_RECORD};
    params.eventRecord.event = event;
    return add_params(phGraphNode, hGraph, dependencies, NULL, numDependencies, &params);
}

CUresult IMPL(cuGraphAddEventWaitNode)(CUgraphNode *phGraphNode, CUgraph hGraph,
                                       const CUgraphNode *dependencies, size_t numDependencies,
                                       CUevent event) {
    CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_WAIT_EVENT};
    params.eventWait.event = event;
    return add_params(phGraphNode, hGraph, dependencies, NULL, numDependencies, &params);
}

/* The work of a node of this kind; NULL for any other. */
static struct work *work_of_node(CUgraphNode node, enum work_kind kind) {
    return object_is(node, OBJECT_GRAPH_NODE) && node->work->kind == kind ? node->work : NULL;
}

static CUresult replace(CUgraphNode node, CUresult made, struct work *work) {
    if (made != CUDA_SUCCESS) {
        return made;
    }
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    graphs_lock();
    if (work_of_node(node, work->kind) != NULL) {
        struct work *old = node->work;
        if (work->kind == WORK_KERNEL) {
            /* Attributes are set by their own call and survive. */
            free(work->launch.attributes);
            work->launch.attributes = old->launch.attributes;
            work->launch.attribute_count = old->launch.attribute_count;
            old->launch.attributes = NULL;
        }
        node->work = work;
        work = old;
        result = CUDA_SUCCESS;
    }
    work_free(work);
    graphs_unlock();
    return result;
}

CUresult IMPL(cuGraphKernelNodeGetParams_v2)(CUgraphNode hNode,
                                             CUDA_KERNEL_NODE_PARAMS *nodeParams) {
    const struct work *work = work_of_node(hNode, WORK_KERNEL);
    if (work == NULL || nodeParams == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const struct launch *launch = &work->launch;
    bool kernel = launch->is_kernel;
    *nodeParams = (CUDA_KERNEL_NODE_PARAMS){kernel ? NULL : launch->function,
                                            launch->grid[0],
                                            launch->grid[1],
                                            launch->grid[2],
                                            launch->block[0],
                                            launch->block[1],
                                            launch->block[2],
                                            launch->shared_bytes,
                                            launch->pointers,
                                            NULL,
                                            kernel ? (CUkernel)launch->function : NULL,
                                            NULL};
    return CUDA_SUCCESS;
}

CUresult IMPL(cuGraphKernelNodeGetParams)(CUgraphNode hNode,
                                          CUDA_KERNEL_NODE_PARAMS_v1 *nodeParams) {
    CUDA_KERNEL_NODE_PARAMS params;
    CUresult result = IMPL(cuGraphKernelNodeGetParams_v2)(hNode, &params);
    if (result != CUDA_SUCCESS || nodeParams == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *nodeParams =
        (CUDA_KERNEL_NODE_PARAMS_v1){params.func != NULL ? params.func : (CUfunction)params.kern,
                                     params.gridDimX,
                                     params.gridDimY,
                                     params.gridDimZ,
                                     params.blockDimX,
                                     params.blockDimY,
                                     params.blockDimZ,
                                     params.sharedMemBytes,
                                     params.kernelParams,
                                     NULL};
    return CUDA_SUCCESS;
}

CUresult IMPL(cuGraphKernelNodeSetParams_v2)(CUgraphNode hNode,
                                             const CUDA_KERNEL_NODE_PARAMS *nodeParams) {
    struct work *work = NULL;
    CUresult made = work_of_kernel(nodeParams, &work);
    return replace(hNode, made, work);
}

CUresult IMPL(cuGraphKernelNodeSetParams)(CUgraphNode hNode,
                                          const CUDA_KERNEL_NODE_PARAMS_v1 *nodeParams) {
    if (nodeParams == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUDA_KERNEL_NODE_PARAMS params = kernel_widened(nodeParams);
    return IMPL(cuGraphKernelNodeSetParams_v2)(hNode, &params);
}

CUresult IMPL(cuGraphMemcpyNodeGetParams)(CUgraphNode hNode, CUDA_MEMCPY3D *nodeParams) {
    const struct work *work = work_of_node(hNode, WORK_COPY);
    if (work == NULL || nodeParams == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    box_from_copy(&work->copy, nodeParams);
    return CUDA_SUCCESS;
}

CUresult IMPL(cuGraphMemcpyNodeSetParams)(CUgraphNode hNode, const CUDA_MEMCPY3D *nodeParams) {
    struct work *work = NULL;
    CUresult made = work_of_box(nodeParams, &work);
    return replace(hNode, made, work);
}

CUresult IMPL(cuGraphMemsetNodeGetParams)(CUgraphNode hNode, CUDA_MEMSET_NODE_PARAMS *nodeParams) {
    const struct work *work = work_of_node(hNode, WORK_FILL);
    if (work == NULL || nodeParams == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *nodeParams =
        (CUDA_MEMSET_NODE_PARAMS){work->fill.target,        work->fill.pitch, work->fill.value,
                                  work->fill.element_bytes, work->fill.width, work->fill.height};
    return CUDA_SUCCESS;
}

CUresult IMPL(cuGraphMemsetNodeSetParams)(CUgraphNode hNode,
                                          const CUDA_MEMSET_NODE_PARAMS *nodeParams) {
    struct work *work = NULL;
    CUresult made = work_of_fill(nodeParams, &work);
    return replace(hNode, made, work);
}

CUresult IMPL(cuGraphHostNodeGetParams)(CUgraphNode hNode, CUDA_HOST_NODE_PARAMS *nodeParams) {
    const struct work *work = work_of_node(hNode, WORK_HOST);
    if (work == NULL || nodeParams == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *nodeParams = (CUDA_HOST_NODE_PARAMS){work->host.function, work->host.data};
    return CUDA_SUCCESS;
}

/* The array handed out stays the node's, as with the real driver. */
CUresult IMPL(cuGraphBatchMemOpNodeGetParams)(CUgraphNode hNode,
                                              CUDA_BATCH_MEM_OP_NODE_PARAMS *nodeParams_out) {
    const struct work *work = work_of_node(hNode, WORK_MEMOPS);
    if (work == NULL || nodeParams_out == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *nodeParams_out =
        (CUDA_BATCH_MEM_OP_NODE_PARAMS){NULL, work->memops.count, work->memops.operations, 0};
    return CUDA_SUCCESS;
}

CUresult IMPL(cuGraphBatchMemOpNodeSetParams)(CUgraphNode hNode,
                                              const CUDA_BATCH_MEM_OP_NODE_PARAMS *nodeParams) {
    struct work *work = NULL;
    CUresult made = work_of_memops(nodeParams, &work);
    return replace(hNode, made, work);
}

CUresult IMPL(cuGraphChildGraphNodeGetGraph)(CUgraphNode hNode, CUgraph *phGraph) {
    const struct work *work = work_of_node(hNode, WORK_CHILD);
    if (work == NULL || phGraph == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *phGraph = work->child;
    return CUDA_SUCCESS;
}

CUresult IMPL(cuGraphEventRecordNodeGetEvent)(CUgraphNode hNode, CUevent *event_out) {
    const struct work *work = work_of_node(hNode, WORK_EVENT_RECORD);
    if (work == NULL || event_out == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *event_out = work->event;
    return CUDA_SUCCESS;
}

CUresult IMPL(cuGraphEventWaitNodeGetEvent)(CUgraphNode hNode, CUevent *event_out) {
    const struct work *work = work_of_node(hNode, WORK_EVENT_WAIT);
    if (work == NULL || event_out == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *event_out = work->event;
    return CUDA_SUCCESS;
}

CUresult IMPL(cuGraphNodeSetParams)(CUgraphNode hNode, CUgraphNodeParams *nodeParams) {
    struct work *work = NULL;
    CUresult made = work_of_params(nodeParams, &work);
    return replace(hNode, made, work);
}

CUresult IMPL(cuGraphKernelNodeGetAttribute)(CUgraphNode hNode, CUkernelNodeAttrID attr,
                                             CUkernelNodeAttrValue *value_out) {
    const struct work *work = work_of_node(hNode, WORK_KERNEL);
    if (work == NULL || value_out == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    memset(value_out, 0, sizeof *value_out);
    for (unsigned i = 0; i < work->launch.attribute_count; i++) {
        if (work->launch.attributes[i].id == attr) {
            *value_out = work->launch.attributes[i].value;
        }
    }
    return CUDA_SUCCESS;
}

CUresult IMPL(cuGraphKernelNodeSetAttribute)(CUgraphNode hNode, CUkernelNodeAttrID attr,
                                             const CUkernelNodeAttrValue *value) {
    struct work *work = work_of_node(hNode, WORK_KERNEL);
    if (work == NULL || value == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    graphs_lock();
    struct launch *launch = &work->launch;
    unsigned at = 0;
    while (at < launch->attribute_count && launch->attributes[at].id != attr) {
        at++;
    }
    CUlaunchAttribute *larger =
        at < launch->attribute_count
            ? launch->attributes
            : realloc(launch->attributes, (at + 1) * sizeof *launch->attributes);
    if (larger != NULL) {
        launch->attributes = larger;
        launch->attributes[at] = (CUlaunchAttribute){.id = attr, .value = *value};
        launch->attribute_count += at == launch->attribute_count;
    }
    graphs_unlock();
    return larger == NULL ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}
