/* Executable graphs: changed, updated, set again, and launched while they go. */
#include <string.h>

#include "kit.h"

static uint32_t *flags;
static CUfunction fill;
static CUdeviceptr buffer;

static CUdeviceptr flag(size_t index) {
    return (CUdeviceptr)(uintptr_t)&flags[index];
}

static void executables_can_be_changed(void) {
    CUgraph graph;
    CUgraph clone;
    CUgraph other;
    CUgraphNode node;
    CUgraphNode in_clone;
    CUgraphNode empty;
    CUgraphNode child;
    CUstream stream;
    uint64_t address = buffer;
    uint64_t value = 1;
    uint64_t count = 1;
    void *pointers[] = {&address, &value, &count};
    CUDA_KERNEL_NODE_PARAMS params = {fill, 1, 1, 1, 1, 1, 1, 0, pointers, NULL, NULL, NULL};
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuGraphCreate(&graph, 0));
    OK(cuGraphAddKernelNode(&node, graph, NULL, 0, &params));
    value = 100; /* the node has its own copy */
    CUgraphExec exec = kit_instantiate(graph);
    OK(cuGraphLaunch(exec, stream));
    OK(cuStreamSynchronize(stream));
    CHECK(kit_word(buffer) == 1);
    OK(cuGraphExecKernelNodeSetParams(exec, node, &params));
    OK(cuGraphLaunch(exec, stream));
    OK(cuStreamSynchronize(stream));
    CHECK(kit_word(buffer) == 100);
    OK(cuGraphNodeSetEnabled(exec, node, 0));
    OK(cuMemsetD8(buffer, 0, 8));
    OK(cuCtxSynchronize());
    OK(cuGraphLaunch(exec, stream));
    OK(cuStreamSynchronize(stream));
    CHECK(kit_word(buffer) == 0);
    OK(cuGraphNodeSetEnabled(exec, node, 1));

    OK(cuGraphClone(&clone, graph));
    OK(cuGraphNodeFindInClone(&in_clone, node, clone));
    value = 200;
    OK(cuGraphKernelNodeSetParams(in_clone, &params));
    CUgraphExecUpdateResultInfo info;
    OK(cuGraphExecUpdate(exec, clone, &info));
    OK(cuGraphLaunch(exec, stream));
    OK(cuStreamSynchronize(stream));
    CHECK(kit_word(buffer) == 200);
    OK(cuGraphAddEmptyNode(&empty, clone, &in_clone, 1));
    FAILS(cuGraphExecUpdate(exec, clone, &info), CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
    CHECK(info.result == CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED);
    OK(cuGraphExecDestroy(exec));

    /* A child runs whole between what comes before and after its node. */
    OK(cuGraphCreate(&other, 0));
    value = 1;
    OK(cuGraphAddKernelNode(&node, other, NULL, 0, &params));
    OK(cuGraphAddChildGraphNode(&child, other, &node, 1, clone));
    address = buffer + 8;
    OK(cuGraphAddKernelNode(&node, other, &child, 1, &params));
    CUgraph inside;
    OK(cuGraphChildGraphNodeGetGraph(child, &inside));
    CHECK(inside != clone);
    FAILS(cuGraphDestroy(inside), CUDA_ERROR_INVALID_VALUE);
    exec = kit_instantiate(other);
    OK(cuGraphLaunch(exec, stream));
    OK(cuStreamSynchronize(stream));
    CHECK(kit_word(buffer) == 200 && kit_word(buffer + 8) == 1);
    OK(cuGraphDestroyNode(child));
    size_t nodes = 0;
    size_t edges = 0;
    OK(cuGraphGetNodes(other, NULL, &nodes));
    OK(cuGraphGetEdges(other, NULL, NULL, NULL, &edges));
    CHECK(nodes == 2 && edges == 0);
    OK(cuGraphExecDestroy(exec));
    OK(cuGraphDestroy(graph));
    OK(cuGraphDestroy(clone));
    OK(cuGraphDestroy(other));
    FAILS(cuGraphDestroy(other), CUDA_ERROR_INVALID_VALUE);
    OK(cuStreamDestroy(stream));
}

/* A gate of an executable is set again: to other words and values, not to other operations. */
static void gates_can_be_set_again(void) {
    CUgraph graph;
    CUgraphNode gate;
    CUgraphNode node;
    CUcontext ctx;
    CUstream stream;
    kit_set(&flags[0], 0);
    kit_set(&flags[1], 0);
    kit_set(&flags[2], 0);
    OK(cuCtxGetCurrent(&ctx));
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuGraphCreate(&graph, 0));
    CUstreamBatchMemOpParams operations[2];
    memset(operations, 0, sizeof operations);
    operations[0].writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
    operations[0].writeValue.address = flag(1);
    operations[0].writeValue.value = 5;
    operations[1].waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
    operations[1].waitValue.address = flag(0);
    operations[1].waitValue.value = 1;
    CUDA_BATCH_MEM_OP_NODE_PARAMS params = {ctx, 2, operations, 0};
    OK(cuGraphAddBatchMemOpNode(&gate, graph, NULL, 0, &params));
    CUDA_HOST_NODE_PARAMS host = {kit_note, &flags[2]};
    OK(cuGraphAddHostNode(&node, graph, &gate, 1, &host));
    CUgraphExec exec = kit_instantiate(graph);
    operations[0].writeValue.value = 6;
    operations[1].waitValue.address = flag(1);
    operations[1].waitValue.value = 6; /* by its own write */
    OK(cuGraphExecBatchMemOpNodeSetParams(exec, gate, &params));
    OK(cuGraphLaunch(exec, stream));
    OK(cuStreamSynchronize(stream));
    CHECK(kit_get(&flags[1]) == 6 && kit_get(&flags[2]) == 1);
    params.count = 1;
    FAILS(cuGraphExecBatchMemOpNodeSetParams(exec, gate, &params), CUDA_ERROR_INVALID_VALUE);
    params.count = 2;
    operations[1].waitValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
    FAILS(cuGraphExecBatchMemOpNodeSetParams(exec, gate, &params), CUDA_ERROR_INVALID_VALUE);
    OK(cuGraphExecDestroy(exec));
    OK(cuGraphDestroy(graph));
    OK(cuStreamDestroy(stream));
}

static void nodes_are_found_in_clones_of_children(void) {
    CUgraph inner;
    CUgraph outer;
    CUgraph clone;
    CUgraph child_graph;
    CUgraph child_clone;
    CUgraphNode node;
    CUgraphNode child;
    CUgraphNode twin;
    CUgraphNode inside;
    CUgraphNode found;
    size_t count = 1;
    OK(cuGraphCreate(&inner, 0));
    OK(cuGraphAddEmptyNode(&node, inner, NULL, 0));
    OK(cuGraphCreate(&outer, 0));
    OK(cuGraphAddChildGraphNode(&child, outer, NULL, 0, inner));
    OK(cuGraphClone(&clone, outer));
    OK(cuGraphNodeFindInClone(&twin, child, clone));
    CHECK(twin != child);
    OK(cuGraphChildGraphNodeGetGraph(child, &child_graph));
    OK(cuGraphChildGraphNodeGetGraph(twin, &child_clone));
    OK(cuGraphGetNodes(child_graph, &inside, &count));
    OK(cuGraphNodeFindInClone(&found, inside, child_clone));
    CHECK(found != inside && kit_type_of(found) == CU_GRAPH_NODE_TYPE_EMPTY);
    FAILS(cuGraphNodeFindInClone(&found, node, clone), CUDA_ERROR_INVALID_VALUE);
    OK(cuGraphDestroy(clone));
    OK(cuGraphDestroy(outer));
    OK(cuGraphDestroy(inner));
}

static void events_inside_graphs(void) {
    CUgraph graph;
    CUgraphNode record;
    CUgraphNode wait;
    CUgraphNode node;
    CUevent outside;
    CUevent inside;
    CUstream stream;
    CUstream other;
    kit_set(&flags[0], 0);
    kit_set(&flags[1], 0);
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
    OK(cuEventCreate(&outside, CU_EVENT_DISABLE_TIMING));
    OK(cuEventCreate(&inside, CU_EVENT_DISABLE_TIMING));
    OK(cuGraphCreate(&graph, 0));
    OK(cuGraphAddEventWaitNode(&wait, graph, NULL, 0, outside));
    CUDA_HOST_NODE_PARAMS host = {kit_note, &flags[1]};
    OK(cuGraphAddHostNode(&node, graph, &wait, 1, &host));
    OK(cuGraphAddEventRecordNode(&record, graph, &node, 1, inside));
    CUgraphExec exec = kit_instantiate(graph);
    OK(cuStreamWaitValue32(other, flag(0), 1, 0));
    OK(cuEventRecord(outside, other));
    OK(cuGraphLaunch(exec, stream));
    FAILS(cuEventQuery(inside), CUDA_ERROR_NOT_READY);
    CHECK(kit_get(&flags[1]) == 0);
    kit_set(&flags[0], 1);
    OK(cuEventSynchronize(inside));
    CHECK(kit_get(&flags[1]) == 1);
    OK(cuStreamSynchronize(stream));
    /* Another event is recorded, another one waited for. */
    CUevent later;
    OK(cuEventCreate(&later, CU_EVENT_DISABLE_TIMING));
    OK(cuGraphExecEventRecordNodeSetEvent(exec, record, later));
    OK(cuGraphExecEventWaitNodeSetEvent(exec, wait, inside));
    FAILS(cuGraphExecEventWaitNodeSetEvent(exec, record, inside), CUDA_ERROR_INVALID_VALUE);
    OK(cuGraphLaunch(exec, stream));
    OK(cuEventSynchronize(later));
    CHECK(kit_get(&flags[1]) == 2);
    OK(cuStreamSynchronize(stream));
    OK(cuEventDestroy(later));
    OK(cuGraphExecDestroy(exec));
    OK(cuGraphDestroy(graph));
    OK(cuEventDestroy(outside));
    OK(cuEventDestroy(inside));
    OK(cuStreamDestroy(stream));
    OK(cuStreamDestroy(other));
}

static void an_executable_may_go_while_it_runs(void) {
    CUgraph graph;
    CUstream stream;
    kit_set(&flags[0], 0);
    kit_set(&flags[1], 0);
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    OK(cuStreamWaitValue32(stream, flag(0), 1, 0));
    OK(cuLaunchHostFunc(stream, kit_note, &flags[1]));
    OK(cuStreamEndCapture(stream, &graph));
    CUgraphExec exec = kit_instantiate(graph);
    OK(cuGraphLaunch(exec, stream));
    OK(cuGraphExecDestroy(exec));
    OK(cuGraphDestroy(graph));
    kit_set(&flags[0], 1);
    OK(cuStreamSynchronize(stream));
    CHECK(flags[1] == 1);
    OK(cuStreamDestroy(stream));
}

int main(void) {
    kit_machine(NULL);
    kit_device(0);
    flags = kit_flags(NULL);
    OK(cuMemHostRegister(flags, 4096, 0));
    fill = kit_function("sim_fill");
    OK(cuMemAlloc(&buffer, 4096));
    executables_can_be_changed();
    gates_can_be_set_again();
    nodes_are_found_in_clones_of_children();
    events_inside_graphs();
    an_executable_may_go_while_it_runs();
    OK(cuDevicePrimaryCtxRelease(0));
    return 0;
}
