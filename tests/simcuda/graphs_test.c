/* Graphs: captured, built by hand, extended by gates, and launched while others hold a flag. */
#include <stdlib.h>
#include <string.h>

#include "kit.h"

static uint32_t *flags;
static CUfunction fill, hash, spin;
static CUdeviceptr buffer, result_word;

static CUdeviceptr flag(size_t index) {
    return (CUdeviceptr)(uintptr_t)&flags[index];
}

static void launch_fill(CUstream stream, uint64_t address, uint64_t value) {
    uint64_t count = 1;
    kit_launch(fill, stream, (void *[]){&address, &value, &count});
}

static void a_captured_stream_becomes_a_chain(void) {
    CUstream stream;
    CUgraph graph;
    CUgraphNode nodes[8];
    CUgraphNode from[8];
    CUgraphNode to[8];
    CUstreamCaptureStatus status;
    size_t count = 8;
    size_t edges = 8;
    uint64_t bytes = 64;
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    OK(cuStreamIsCapturing(stream, &status));
    CHECK(status == CU_STREAM_CAPTURE_STATUS_ACTIVE);
    OK(cuMemsetD8Async(buffer, 1, 64, stream));
    launch_fill(stream, buffer + 8, 5);
    OK(cuMemcpyDtoDAsync(buffer + 16, buffer + 8, 8, stream));
    OK(cuStreamWriteValue32(stream, flag(0), 7, 0));
    OK(cuLaunchHostFunc(stream, kit_note, &flags[1]));
    kit_launch(hash, stream, (void *[]){&buffer, &bytes, &result_word});
    OK(cuStreamEndCapture(stream, &graph));
    CHECK(kit_get(&flags[0]) == 0); /* nothing ran */
    OK(cuGraphGetNodes(graph, NULL, &count));
    CHECK(count == 6);
    OK(cuGraphGetNodes(graph, nodes, &count));
    static const CUgraphNodeType types[] = {
        CU_GRAPH_NODE_TYPE_MEMSET,       CU_GRAPH_NODE_TYPE_KERNEL, CU_GRAPH_NODE_TYPE_MEMCPY,
        CU_GRAPH_NODE_TYPE_BATCH_MEM_OP, CU_GRAPH_NODE_TYPE_HOST,   CU_GRAPH_NODE_TYPE_KERNEL};
    for (size_t i = 0; i < count; i++) {
        CHECK(kit_type_of(nodes[i]) == types[i]);
    }
    OK(cuGraphGetEdges(graph, from, to, NULL, &edges));
    CHECK(edges == 5 && from[0] == nodes[0] && to[0] == nodes[1]);
    CUDA_KERNEL_NODE_PARAMS kernel;
    OK(cuGraphKernelNodeGetParams(nodes[1], &kernel));
    CHECK(kernel.func == fill && *(uint64_t *)kernel.kernelParams[0] == buffer + 8);
    CUDA_MEMCPY3D copy;
    OK(cuGraphMemcpyNodeGetParams(nodes[2], &copy));
    CHECK(copy.srcDevice == buffer + 8 && copy.dstDevice == buffer + 16 && copy.WidthInBytes == 8);
    CUgraphExec exec = kit_instantiate(graph);
    OK(cuGraphDestroy(graph)); /* the executable lives on */
    OK(cuGraphLaunch(exec, stream));
    OK(cuGraphLaunch(exec, stream));
    OK(cuStreamSynchronize(stream));
    CHECK(flags[0] == 7 && flags[1] == 2);
    uint64_t expected[8] = {0x0101010101010101, 5, 5};
    for (int i = 3; i < 8; i++) {
        expected[i] = expected[0];
    }
    CHECK(kit_word(result_word) == simcuda_hash(0, expected, sizeof expected));
    OK(cuGraphExecDestroy(exec));
    FAILS(cuGraphLaunch(exec, stream), CUDA_ERROR_INVALID_VALUE);
    OK(cuStreamDestroy(stream));
}

/* What an interposer does: a wait before each kernel that reads weights, in a graph that is there
 * already. */
static void gates_are_added_to_a_captured_graph(void) {
    CUstream stream;
    CUstream agent;
    CUgraph graph;
    CUgraphNode nodes[4];
    CUgraphNode gates[2];
    size_t count = 4;
    kit_set(&flags[0], 0);
    kit_set(&flags[1], 0);
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuStreamCreate(&agent, CU_STREAM_NON_BLOCKING));
    OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    launch_fill(stream, buffer, 1);
    OK(cuLaunchHostFunc(stream, kit_note, &flags[1]));
    launch_fill(stream, buffer, 2);
    OK(cuStreamEndCapture(stream, &graph));
    OK(cuGraphGetNodes(graph, nodes, &count));
    CHECK(count == 3);
    CUcontext ctx;
    OK(cuCtxGetCurrent(&ctx));
    CUstreamBatchMemOpParams wait;
    memset(&wait, 0, sizeof wait);
    wait.waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
    wait.waitValue.address = flag(0);
    wait.waitValue.flags = CU_STREAM_WAIT_VALUE_GEQ;
    CUDA_BATCH_MEM_OP_NODE_PARAMS params = {ctx, 1, &wait, 0};
    for (uint32_t i = 0; i < 2; i++) {
        CUgraphNode kernel = nodes[(size_t)2 * i];
        CUgraphNode before[4];
        CUgraphEdgeData data[4];
        size_t depends = 4;
        wait.waitValue.value64 = i + 1;
        OK(cuGraphNodeGetDependencies(kernel, before, data, &depends));
        OK(cuGraphAddBatchMemOpNode(&gates[i], graph, before, depends, &params));
        for (size_t d = 0; d < depends; d++) {
            OK(cuGraphRemoveDependencies(graph, &before[d], &kernel, &data[d], 1));
        }
        OK(cuGraphAddDependencies(graph, &gates[i], &kernel, NULL, 1));
    }
    FAILS(cuGraphAddDependencies(graph, &nodes[2], &gates[0], NULL, 1),
          CUDA_ERROR_INVALID_VALUE); /* a circle */
    CUDA_BATCH_MEM_OP_NODE_PARAMS seen;
    OK(cuGraphBatchMemOpNodeGetParams(gates[1], &seen));
    CHECK(seen.count == 1 && seen.paramArray[0].waitValue.value64 == 2);
    CUgraphExec exec = kit_instantiate(graph);
    OK(cuGraphLaunch(exec, stream));
    FAILS(cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
    CHECK(kit_get(&flags[1]) == 0);
    OK(cuStreamWriteValue32(agent, flag(0), 1, 0));
    kit_await(&flags[1], 1); /* past the first gate */
    FAILS(cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
    OK(cuStreamWriteValue32(agent, flag(0), 2, 0));
    OK(cuStreamSynchronize(stream));
    CHECK(kit_word(buffer) == 2);
    OK(cuGraphExecDestroy(exec));
    OK(cuGraphDestroy(graph));
    OK(cuStreamDestroy(stream));
    OK(cuStreamDestroy(agent));
}

/* One branch waits for what another branch of the same graph writes, and was added first. */
static void a_waiting_branch_holds_up_no_other(void) {
    CUgraph graph;
    CUgraphNode waiter;
    CUgraphNode writer;
    CUcontext ctx;
    CUstream stream;
    kit_set(&flags[0], 0);
    OK(cuCtxGetCurrent(&ctx));
    OK(cuGraphCreate(&graph, 0));
    CUstreamBatchMemOpParams operation;
    memset(&operation, 0, sizeof operation);
    operation.waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
    operation.waitValue.address = flag(0);
    operation.waitValue.value = 9;
    CUDA_BATCH_MEM_OP_NODE_PARAMS params = {ctx, 1, &operation, 0};
    OK(cuGraphAddBatchMemOpNode(&waiter, graph, NULL, 0, &params));
    operation.writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
    OK(cuGraphAddBatchMemOpNode(&writer, graph, NULL, 0, &params));
    size_t roots = 0;
    OK(cuGraphGetRootNodes(graph, NULL, &roots));
    CHECK(roots == 2);
    CUgraphExec exec = kit_instantiate(graph);
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuGraphLaunch(exec, stream));
    OK(cuStreamSynchronize(stream));
    CHECK(flags[0] == 9);
    OK(cuGraphExecDestroy(exec));
    OK(cuGraphDestroy(graph));
    OK(cuStreamDestroy(stream));
}

static void streams_fork_and_join_in_a_capture(void) {
    CUstream main_stream;
    CUstream side;
    CUevent fork;
    CUevent join;
    CUgraph graph;
    CUgraphNode nodes[4];
    CUgraphNode dependencies[4];
    size_t count = 4;
    size_t depends = 4;
    OK(cuStreamCreate(&main_stream, CU_STREAM_NON_BLOCKING));
    OK(cuStreamCreate(&side, CU_STREAM_NON_BLOCKING));
    OK(cuEventCreate(&fork, CU_EVENT_DISABLE_TIMING));
    OK(cuEventCreate(&join, CU_EVENT_DISABLE_TIMING));
    OK(cuStreamBeginCapture(main_stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    launch_fill(main_stream, buffer, 1);
    OK(cuEventRecord(fork, main_stream));
    OK(cuStreamWaitEvent(side, fork, 0));
    launch_fill(main_stream, buffer + 8, 2);
    launch_fill(side, buffer + 16, 3);
    OK(cuEventRecord(join, side));
    OK(cuStreamWaitEvent(main_stream, join, 0));
    launch_fill(main_stream, buffer + 24, 4);
    FAILS(cuEventQuery(join), CUDA_ERROR_CAPTURED_EVENT);
    OK(cuStreamEndCapture(main_stream, &graph));
    OK(cuGraphGetNodes(graph, nodes, &count));
    CHECK(count == 4);
    OK(cuGraphNodeGetDependencies(nodes[3], dependencies, NULL, &depends));
    CHECK(depends == 2 && dependencies[0] == nodes[1] && dependencies[1] == nodes[2]);
    depends = 4;
    OK(cuGraphNodeGetDependentNodes(nodes[0], dependencies, NULL, &depends));
    CHECK(depends == 2);
    OK(cuStreamQuery(side)); /* it left the capture with the others */
    CUgraphExec exec = kit_instantiate(graph);
    OK(cuGraphLaunch(exec, side));
    OK(cuStreamSynchronize(side));
    for (uint64_t i = 0; i < 4; i++) {
        CHECK(kit_word(buffer + 8 * i) == i + 1);
    }
    OK(cuGraphExecDestroy(exec));
    OK(cuGraphDestroy(graph));

    OK(cuStreamBeginCapture(main_stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    OK(cuEventRecord(fork, main_stream));
    OK(cuStreamWaitEvent(side, fork, 0));
    launch_fill(side, buffer, 1);
    FAILS(cuStreamEndCapture(side, &graph), CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
    FAILS(cuStreamEndCapture(main_stream, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    OK(cuStreamBeginCapture(main_stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    OK(cuEventRecord(fork, main_stream));
    OK(cuStreamWaitEvent(side, fork, 0));
    launch_fill(side, buffer, 1);
    FAILS(cuStreamEndCapture(main_stream, &graph), CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
    OK(cuEventDestroy(fork));
    OK(cuEventDestroy(join));
    OK(cuStreamDestroy(main_stream));
    OK(cuStreamDestroy(side));
}

static void what_a_capture_forbids(void) {
    CUstream stream;
    CUstream blocking;
    CUgraph graph;
    CUdeviceptr memory;
    CUevent outside;
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
    OK(cuEventCreate(&outside, CU_EVENT_DISABLE_TIMING));
    OK(cuEventRecord(outside, blocking));
    FAILS(cuStreamBeginCapture(NULL, CU_STREAM_CAPTURE_MODE_GLOBAL),
          CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    FAILS(cuMemAlloc(&memory, 512), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    FAILS(cuStreamEndCapture(stream, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    OK(cuMemAlloc(&memory, 512));
    FAILS(cuStreamSynchronize(stream), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    FAILS(cuStreamEndCapture(stream, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    FAILS(cuStreamWaitEvent(stream, outside, 0), CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
    FAILS(cuStreamEndCapture(stream, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    OK(cuStreamBeginCapture(blocking, CU_STREAM_CAPTURE_MODE_RELAXED));
    FAILS(cuMemsetD8(memory, 0, 8), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    FAILS(cuStreamEndCapture(blocking, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    FAILS(cuStreamEndCapture(blocking, &graph), CUDA_ERROR_ILLEGAL_STATE);
    OK(cuMemFree(memory));
    OK(cuEventDestroy(outside));
    OK(cuStreamDestroy(stream));
    OK(cuStreamDestroy(blocking));
}

static void programmatic_edges_are_not_lost(void) {
    CUstream stream;
    CUgraph graph;
    CUgraphNode from[2];
    CUgraphNode to[2];
    CUgraphEdgeData data[2];
    size_t edges = 2;
    CUlaunchAttribute attribute;
    CUlaunchConfig config;
    memset(&attribute, 0, sizeof attribute);
    memset(&config, 0, sizeof config);
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    attribute.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
    attribute.value.programmaticStreamSerializationAllowed = 1;
    config.gridDimX = config.gridDimY = config.gridDimZ = 1;
    config.blockDimX = config.blockDimY = config.blockDimZ = 1;
    config.hStream = stream;
    config.attrs = &attribute;
    config.numAttrs = 1;
    uint64_t duration = 1000;
    OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    launch_fill(stream, buffer, 1);
    OK(cuLaunchKernelEx(&config, spin, (void *[]){&duration}, NULL));
    OK(cuStreamEndCapture(stream, &graph));
    FAILS(cuGraphGetEdges(graph, from, to, NULL, &edges), CUDA_ERROR_LOSSY_QUERY);
    OK(cuGraphGetEdges(graph, from, to, data, &edges));
    CHECK(edges == 1 && data[0].type == CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC &&
          data[0].from_port == CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC);
    FAILS(cuGraphRemoveDependencies(graph, from, to, NULL, 1), CUDA_ERROR_INVALID_VALUE);
    OK(cuGraphRemoveDependencies(graph, from, to, data, 1));
    CUkernelNodeAttrValue value;
    OK(cuGraphKernelNodeGetAttribute(to[0], CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
                                     &value));
    CHECK(value.programmaticStreamSerializationAllowed == 1);
    OK(cuGraphDestroy(graph));
    OK(cuStreamDestroy(stream));
}

int main(void) {
    kit_machine(NULL);
    kit_device(0);
    flags = kit_flags(NULL);
    OK(cuMemHostRegister(flags, 4096, 0));
    fill = kit_function("sim_fill");
    hash = kit_function("sim_hash");
    spin = kit_function("sim_spin");
    OK(cuMemAlloc(&buffer, 4096));
    OK(cuMemAlloc(&result_word, 8));
    a_captured_stream_becomes_a_chain();
    gates_are_added_to_a_captured_graph();
    a_waiting_branch_holds_up_no_other();
    streams_fork_and_join_in_a_capture();
    what_a_capture_forbids();
    programmatic_edges_are_not_lost();
    OK(cuDevicePrimaryCtxRelease(0));
    return 0;
}
