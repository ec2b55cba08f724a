/* What the observer and the gate see. One scenario, named by the argument, a
 * process. */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "access.h"
#include "kernel_node.h"
#include "simcuda.h"

enum { WEIGHTS = 6, BYTES = 64 << 10, PIECE = 4096 };

static CUdeviceptr weights[WEIGHTS];
static _Thread_local CUdeviceptr own_output; /* 0: right after what is read */
static CUdeviceptr scratch;                  /* where kernels write: no weight */
static CUmodule module;
static CUfunction gemm, gemm_struct, fill, spin;

/* Weight i lies before weight i - 1, so that order and address disagree. */
static void prepare(void) {
    access_device();
    OK(D(cuMemAlloc)(&weights[WEIGHTS - 1], WEIGHTS * BYTES));
    for (int i = 0; i < WEIGHTS; i++) {
        weights[i] = weights[WEIGHTS - 1] + (CUdeviceptr)(WEIGHTS - 1 - i) * BYTES;
    }
    OK(D(cuMemsetD8)(weights[WEIGHTS - 1], 3, WEIGHTS * BYTES));
    OK(D(cuMemAlloc)(&scratch, BYTES));
    gemm = access_function(&module, "sim_gemm_like");
    OK(D(cuModuleGetFunction)(&gemm_struct, module, "sim_gemm_struct"));
    OK(D(cuModuleGetFunction)(&fill, module, "sim_fill"));
    OK(D(cuModuleGetFunction)(&spin, module, "sim_spin"));
}

static void watch(void) {
    tierline_weight list[WEIGHTS];
    for (int i = 0; i < WEIGHTS; i++) {
        list[i] = (tierline_weight){weights[i], BYTES};
    }
    EQUAL(D(tierline_observer_watch)(list, WEIGHTS), 0);
}

struct gemm_parameters {
    uint64_t weights, bytes, in, out, duration;
    void *pointers[5];
};

static void **gemm_of(struct gemm_parameters *p, int weight) {
    *p = (struct gemm_parameters){
        weights[weight] + 8, PIECE, scratch, own_output != 0 ? own_output : scratch + 8, 0, {0}};
    uint64_t *words[] = {&p->weights, &p->bytes, &p->in, &p->out, &p->duration};
    for (int i = 0; i < 5; i++) {
        p->pointers[i] = words[i];
    }
    return p->pointers;
}

static CUDA_KERNEL_NODE_PARAMS node_of(struct gemm_parameters *p, int weight) {
    return kernel_node(gemm, 32, gemm_of(p, weight));
}

static void launch(int weight, CUstream stream) {
    struct gemm_parameters p;
    OK(D(cuLaunchKernel)(gemm, 1, 1, 1, 32, 1, 1, 0, stream, gemm_of(&p, weight), NULL));
}

static void expect_order(const uint32_t *wanted, uint32_t count) {
    uint32_t seen[WEIGHTS];
    EQUAL(D(tierline_observer_order)(seen, WEIGHTS), count);
    for (uint32_t i = 0; i < count; i++) {
        EQUAL(seen[i], wanted[i]);
    }
}

static tierline_observed totals(void) {
    tierline_observed seen;
    D(tierline_observer_totals)(&seen);
    return seen;
}

static void every_launch(void) {
    prepare();
    launch(0, NULL); /* nothing is watched */
    EQUAL(totals().launches, 0);
    watch();
    struct gemm_parameters p;
    launch(2, NULL);
    CUlaunchConfig config = {1, 1, 1, 32, 1, 1, 0, NULL, NULL, 0};
    OK(D(cuLaunchKernelEx)(&config, gemm, gemm_of(&p, 0), NULL));
    OK(D(cuLaunchCooperativeKernel)(gemm, 1, 1, 1, 32, 1, 1, 0, NULL, gemm_of(&p, 4)));
    /* Two weights inside a structure; twice the same one. */
    struct simcuda_gemm inner = {.a = weights[5] + 64,
                                 .a_bytes = PIECE,
                                 .b = weights[1],
                                 .b_bytes = PIECE,
                                 .in = scratch,
                                 .out = scratch + 8};
    void *inner_pointer[] = {&inner};
    OK(D(cuLaunchKernel)(gemm_struct, 1, 1, 1, 32, 1, 1, 0, NULL, inner_pointer, NULL));
    /* All parameters in one buffer. */
    size_t size = 40;
    gemm_of(&p, 3);
    void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &p, CU_LAUNCH_PARAM_BUFFER_SIZE, &size,
                     CU_LAUNCH_PARAM_END};
    OK(D(cuLaunchKernel)(gemm, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, extra));
    /* Writes no weight, and names an address right after the last one. */
    uint64_t out = scratch;
    uint64_t value = weights[0] + BYTES;
    uint64_t count = 1;
    void *fill_pointers[] = {&out, &value, &count};
    value = weights[WEIGHTS - 1] - 1;
    OK(D(cuLaunchKernel)(fill, 1, 1, 1, 32, 1, 1, 0, NULL, fill_pointers, NULL));
    launch(2, NULL);
    expect_order((const uint32_t[]){2, 0, 4, 5, 1, 3}, 6);
    tierline_observed seen = totals();
    EQUAL(seen.launches, 7);
    EQUAL(seen.reads, 7);
    EQUAL(seen.opaque_launches, 0);
    tierline_read reads[16];
    EQUAL(D(tierline_observer_reads)(reads, 16), 7);
    static const struct {
        uint64_t launch;
        uint32_t weight;
    } wanted[] = {{0, 2}, {1, 0}, {2, 4}, {3, 5}, {3, 1}, {4, 3}, {6, 2}};
    for (int i = 0; i < 7; i++) {
        EQUAL(reads[i].launch, wanted[i].launch);
        EQUAL(reads[i].weight, wanted[i].weight);
    }
    D(tierline_observer_restart)();
    launch(5, NULL);
    expect_order((const uint32_t[]){5}, 1);
    OK(D(cuStreamSynchronize)(NULL));
    EQUAL(D(tierline_observer_watch)(NULL, 0), 0);
    launch(5, NULL);
    EQUAL(totals().launches, 0);
    OK(D(cuStreamSynchronize)(NULL));
}

/* What lies between parameters is nobody's, and an address there names nothing.
 */
static void gaps(void) {
    prepare();
    watch();
    CUmodule other;
    CUfunction apart = access_function(&other, "sim_gemm_apart");
    struct {
        uint32_t count, gap;
        uint64_t left_over;
        struct gemm_parameters gemm;
    } buffer = {.left_over = weights[4]};
    gemm_of(&buffer.gemm, 3);
    size_t size = sizeof buffer;
    void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &buffer, CU_LAUNCH_PARAM_BUFFER_SIZE, &size,
                     CU_LAUNCH_PARAM_END};
    OK(D(cuLaunchKernel)(apart, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, extra));
    expect_order((const uint32_t[]){3}, 1);
    EQUAL(totals().opaque_launches, 0);
    OK(D(cuStreamSynchronize)(NULL));
    OK(D(cuModuleUnload)(other));
}

static void bad_ranges(void) {
    prepare();
    tierline_weight list[2] = {{weights[1], BYTES}, {weights[1] + 64, BYTES}};
    CHECK(D(tierline_observer_watch)(list, 2) < 0);
    list[1].bytes = 0;
    CHECK(D(tierline_observer_watch)(list, 2) < 0);
    list[1] = (tierline_weight){UINT64_MAX - 8, 64};
    CHECK(D(tierline_observer_watch)(list, 2) < 0);
    launch(1, NULL);
    EQUAL(totals().launches, 0);
    OK(D(cuStreamSynchronize)(NULL));
}

static void copies(void) {
    prepare();
    watch();
    char host[64];
    CUstream stream;
    OK(D(cuStreamCreate)(&stream, 0));
    OK(D(cuMemcpyDtoH)(host, weights[3] + 100, 64));
    OK(D(cuMemcpyDtoDAsync)(scratch, weights[1] - 16, 32, stream)); /* the end of 2 as well */
    OK(D(cuMemcpyHtoD)(scratch, host, 64));
    /* Described by structures: rows of the weight 0, and of 4; the other way
     * round is no read. */
    CUDA_MEMCPY2D flat = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                          .srcDevice = weights[0],
                          .srcPitch = 32,
                          .dstMemoryType = CU_MEMORYTYPE_HOST,
                          .dstHost = host,
                          .dstPitch = 16,
                          .WidthInBytes = 16,
                          .Height = 4};
    OK(D(cuMemcpy2D)(&flat));
    CUDA_MEMCPY3D deep = {.srcXInBytes = 16,
                          .srcMemoryType = CU_MEMORYTYPE_DEVICE,
                          .srcDevice = weights[4],
                          .srcPitch = 32,
                          .srcHeight = 2,
                          .dstMemoryType = CU_MEMORYTYPE_HOST,
                          .dstHost = host,
                          .dstPitch = 8,
                          .dstHeight = 2,
                          .WidthInBytes = 8,
                          .Height = 2,
                          .Depth = 2};
    OK(D(cuMemcpy3DAsync)(&deep, stream));
    flat = (CUDA_MEMCPY2D){.srcMemoryType = CU_MEMORYTYPE_HOST,
                           .srcHost = host,
                           .srcPitch = 16,
                           .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                           .dstDevice = scratch,
                           .dstPitch = 16,
                           .WidthInBytes = 16,
                           .Height = 4};
    OK(D(cuMemcpy2DAsync)(&flat, stream));
    OK(D(cuStreamSynchronize)(stream));
    expect_order((const uint32_t[]){3, 2, 1, 0, 4}, 5);
    EQUAL(totals().copies, 4);
    OK(D(cuStreamDestroy)(stream));
}

/* A module's handles may come back for other kernels, with other parameters. */
static void unloaded_module(void) {
    prepare();
    watch();
    for (int i = 0; i < 20; i++) {
        CUmodule other;
        CUfunction function = access_function(&other, i % 2 == 0 ? "sim_gemm_like" : "sim_spin");
        struct gemm_parameters p;
        uint64_t none = 0;
        void *one[] = {&none};
        OK(D(cuLaunchKernel)(function, 1, 1, 1, 32, 1, 1, 0, NULL,
                             i % 2 == 0 ? gemm_of(&p, i / 2 % WEIGHTS) : one, NULL));
        OK(D(cuStreamSynchronize)(NULL));
        OK(D(cuModuleUnload)(other));
    }
    EQUAL(totals().launches, 20);
    EQUAL(totals().reads, 10);
}

static CUgraphExec capture(const int *reads, int count, CUstream stream) {
    CUgraph graph;
    CUgraphExec exec;
    OK(D(cuStreamBeginCapture)(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    for (int i = 0; i < count; i++) {
        launch(reads[i], stream);
    }
    OK(D(cuStreamEndCapture)(stream, &graph));
    OK(D(cuGraphInstantiate)(&exec, graph, 0));
    OK(D(cuGraphDestroy)(graph));
    return exec;
}

static void captured_graph(void) {
    prepare();
    CUstream stream;
    OK(D(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING));
    /* One graph before anything is watched, one after. */
    CUgraphExec early = capture((const int[]){4, 2}, 2, stream);
    watch();
    CUgraphExec late = capture((const int[]){1, 3, 1}, 3, stream);
    EQUAL(totals().launches, 0);
    EQUAL(totals().captured, 3);
    OK(D(cuGraphLaunch)(early, stream));
    OK(D(cuGraphLaunch)(late, stream));
    OK(D(cuStreamSynchronize)(stream));
    expect_order((const uint32_t[]){4, 2, 1, 3}, 4);
    EQUAL(totals().launches, 5);
    tierline_read reads[8];
    EQUAL(D(tierline_observer_reads)(reads, 8), 5);
    EQUAL(reads[4].launch, 4);
    EQUAL(reads[4].weight, 1);
    OK(D(cuGraphExecDestroy)(early));
    OK(D(cuGraphExecDestroy)(late));
    OK(D(cuStreamDestroy)(stream));
}

/* A chain whose nodes were created backwards, with a child graph in it. */
static void built_graph(void) {
    prepare();
    watch();
    CUgraph graph;
    CUgraph inner;
    CUgraphNode nodes[3];
    CUgraphNode child;
    CUgraphNode inner_node;
    struct gemm_parameters p[4];
    OK(D(cuGraphCreate)(&graph, 0));
    OK(D(cuGraphCreate)(&inner, 0));
    for (int i = 0; i < 3; i++) {
        CUDA_KERNEL_NODE_PARAMS kernel = node_of(&p[i], i);
        OK(D(cuGraphAddKernelNode)(&nodes[i], graph, NULL, 0, &kernel));
    }
    CUDA_KERNEL_NODE_PARAMS kernel = node_of(&p[3], 5);
    OK(D(cuGraphAddKernelNode)(&inner_node, inner, NULL, 0, &kernel));
    OK(D(cuGraphAddChildGraphNode)(&child, graph, &nodes[2], 1, inner));
    /* 2, the child with 5, 1, 0 */
    CUgraphNode from[] = {child, nodes[1]};
    CUgraphNode to[] = {nodes[1], nodes[0]};
    OK(D(cuGraphAddDependencies)(graph, from, to, NULL, 2));
    CUgraphExec exec;
    CUDA_GRAPH_INSTANTIATE_PARAMS parameters = {0};
    OK(D(cuGraphInstantiateWithParams)(&exec, graph, &parameters));
    CUstream stream;
    OK(D(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING));
    OK(D(cuGraphLaunch)(exec, stream));
    expect_order((const uint32_t[]){2, 5, 1, 0}, 4);
    /* One kernel reads another weight from now on. */
    kernel.kernelParams = gemm_of(&p[1], 4);
    OK(D(cuGraphExecKernelNodeSetParams)(exec, nodes[1], &kernel));
    D(tierline_observer_restart)();
    OK(D(cuGraphLaunch)(exec, stream));
    expect_order((const uint32_t[]){2, 5, 4, 0}, 4);
    /* The graph itself still has the old one. */
    CUgraphExecUpdateResultInfo info;
    OK(D(cuGraphExecUpdate)(exec, graph, &info));
    D(tierline_observer_restart)();
    OK(D(cuGraphLaunch)(exec, stream));
    OK(D(cuStreamSynchronize)(stream));
    expect_order((const uint32_t[]){2, 5, 1, 0}, 4);
    OK(D(cuGraphExecDestroy)(exec));
    OK(D(cuGraphDestroy)(graph));
    OK(D(cuGraphDestroy)(inner));
    OK(D(cuStreamDestroy)(stream));
}

enum { MS = 1000000, ALMOST_MS = 990000 };

/* One timed job of a graph; the ends of its nodes. */
static uint32_t time_graph(CUgraphExec exec, CUstream stream, tierline_time times[WEIGHTS]) {
    D(tierline_observer_restart)();
    OK(D(cuGraphLaunch)(exec, stream));
    return D(tierline_observer_times)(times, WEIGHTS);
}

/* A chain, then two branches side by side, then one node: 2 -> (1 | 0, 3) -> 5. */
static CUgraph branching(CUgraphNode nodes[5], const uint64_t durations_ns[5]) {
    static const int weight_of[] = {2, 1, 0, 3, 5};
    CUgraph graph;
    OK(D(cuGraphCreate)(&graph, 0));
    for (int i = 0; i < 5; i++) {
        struct gemm_parameters p;
        CUDA_KERNEL_NODE_PARAMS kernel = node_of(&p, weight_of[i]);
        p.duration = durations_ns[i];
        OK(D(cuGraphAddKernelNode)(&nodes[i], graph, NULL, 0, &kernel));
    }
    CUgraphNode from[] = {nodes[0], nodes[0], nodes[2], nodes[1], nodes[3]};
    CUgraphNode to[] = {nodes[1], nodes[2], nodes[3], nodes[4], nodes[4]};
    OK(D(cuGraphAddDependencies)(graph, from, to, NULL, 5));
    return graph;
}

/* The time inside a graph shows node by node in a copy of it, but for what may run side by side. */
static void timed_graph(void) {
    prepare();
    D(tierline_observer_time_graphs)(true);
    static const uint64_t durations_ns[] = {2 * MS, MS, MS, MS, 4 * MS};
    CUgraphNode nodes[5];
    CUgraph graph = branching(nodes, durations_ns);
    CUgraphExec exec;
    CUgraphExec whole;
    CUstream stream;
    OK(D(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING));
    OK(D(cuGraphInstantiate)(&exec, graph, 0));
    D(tierline_observer_time_graphs)(false);
    OK(D(cuGraphInstantiate)(&whole, graph, 0));
    watch();
    D(tierline_observer_time)(true);
    tierline_time times[WEIGHTS];
    for (int run = 0; run < 3; run++) {
        EQUAL(time_graph(exec, stream, times), 4);
        expect_order((const uint32_t[]){2, 1, 0, 3, 5}, 5);
        EQUAL(times[0].launch, 0);
        EQUAL(times[1].launch, 2); /* launch 1 goes on during it */
        EQUAL(times[2].launch, 3);
        EQUAL(times[3].launch, 4);
        CHECK(times[0].end_ns >= 2 * ALMOST_MS);
        CHECK(times[1].end_ns >= times[0].end_ns + ALMOST_MS);
        CHECK(times[2].end_ns >= times[1].end_ns + ALMOST_MS);
        CHECK(times[3].end_ns >= times[2].end_ns + 4 * ALMOST_MS);
        CHECK(times[3].end_ns >= times[0].end_ns + 7 * ALMOST_MS);
    }
    /* What was read already is not timed again. */
    OK(D(cuGraphLaunch)(exec, stream));
    EQUAL(D(tierline_observer_times)(times, WEIGHTS), 4);
    /* One that was not kept, or was changed since, is timed as a whole. */
    EQUAL(time_graph(whole, stream, times), 1);
    EQUAL(times[0].launch, 4);
    CHECK(times[0].end_ns >= 9 * ALMOST_MS);
    struct gemm_parameters p;
    CUDA_KERNEL_NODE_PARAMS kernel = node_of(&p, 4);
    OK(D(cuGraphExecKernelNodeSetParams)(exec, nodes[4], &kernel));
    EQUAL(time_graph(exec, stream, times), 1);
    expect_order((const uint32_t[]){2, 1, 0, 3, 4}, 5);
    /* An executable may end before its times are asked for. */
    D(tierline_observer_time_graphs)(true);
    OK(D(cuGraphExecDestroy)(exec));
    OK(D(cuGraphInstantiate)(&exec, graph, 0));
    EQUAL(time_graph(exec, stream, times), 4);
    OK(D(cuStreamSynchronize)(stream));
    OK(D(cuGraphExecDestroy)(exec));
    EQUAL(D(tierline_observer_times)(times, WEIGHTS), 0);
    D(tierline_observer_time)(false);
    D(tierline_observer_time_graphs)(false);
    OK(D(cuGraphExecDestroy)(whole));
    OK(D(cuGraphDestroy)(graph));
    OK(D(cuStreamDestroy)(stream));
}

static void expect_graphed(const uint32_t *expected, uint32_t count) {
    uint32_t named[WEIGHTS];
    EQUAL(D(tierline_graphs_name)(named, WEIGHTS), count);
    for (uint32_t i = 0; i < count; i++) {
        EQUAL(named[i], expected[i]);
    }
}

/* Weights that the program's own graphs name must not move, whenever these were made. */
static void own_graphs(void) {
    prepare();
    static const uint64_t durations_ns[5];
    CUgraphNode nodes[5];
    CUgraph graph = branching(nodes, durations_ns);
    CUgraphExec exec;
    CUgraphExec again;
    D(tierline_graphs_follow)(true);
    OK(D(cuGraphInstantiate)(&again, graph, 0));
    watch();
    expect_graphed(NULL, 0);
    EQUAL(D(tierline_observer_watch)(NULL, 0), 0);
    D(tierline_graphs_follow)(false);
    OK(D(cuGraphInstantiate)(&exec, graph, 0));
    expect_graphed(NULL, 0);
    watch();
    expect_graphed((const uint32_t[]){0, 1, 2, 3, 5}, 5);
    struct gemm_parameters p;
    CUDA_KERNEL_NODE_PARAMS kernel = node_of(&p, 4);
    OK(D(cuGraphExecKernelNodeSetParams)(exec, nodes[4], &kernel));
    expect_graphed((const uint32_t[]){0, 1, 2, 3, 4}, 5);
    OK(D(cuGraphExecDestroy)(exec));
    expect_graphed(NULL, 0);
    OK(D(cuGraphExecDestroy)(again));
    OK(D(cuGraphDestroy)(graph));
}

static void expect_in_memory(uint32_t bits) {
    tierline_weight list[WEIGHTS];
    bool named[WEIGHTS];
    for (int i = 0; i < WEIGHTS; i++) {
        list[i] = (tierline_weight){weights[i], BYTES};
    }
    EQUAL(D(tierline_memory_names)(list, WEIGHTS, named), 0);
    for (uint32_t i = 0; i < WEIGHTS; i++) {
        EQUAL(named[i], (bits >> i & 1U) != 0);
    }
}

/* Addresses are found wherever the program's memory holds them, but in the weights themselves; what
 * could not be looked at is no answer. */
static void tables(void) {
    prepare();
    expect_in_memory(0);
    uint64_t table[] = {weights[2], weights[4] + BYTES - 1, weights[5] - 1, 7, weights[0] + 8};
    OK(D(cuMemcpyHtoD)(weights[3] + 16, table, sizeof table));
    expect_in_memory(0);
    OK(D(cuMemcpyHtoD)(scratch + BYTES - 8, table, 8));
    expect_in_memory(1U << 2);
    uint64_t *pinned;
    OK(D(cuMemHostAlloc)((void **)&pinned, 64, CU_MEMHOSTALLOC_DEVICEMAP));
    memset(pinned, 0, 64);
    pinned[7] = table[1];
    expect_in_memory(1U << 2 | 1U << 4);
    CUdeviceptr pooled;
    OK(D(cuMemAllocAsync)(&pooled, 64, NULL));
    OK(D(cuMemcpyHtoD)(pooled, table, sizeof table));
    expect_in_memory(1U << 0 | 1U << 2 | 1U << 4);
    OK(D(cuMemFreeAsync)(pooled, NULL));
    OK(D(cuMemFreeHost)(pinned));
    expect_in_memory(1U << 2);
    CUstream stream;
    CUgraph graph;
    OK(D(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING));
    OK(D(cuStreamBeginCapture)(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    bool named;
    EQUAL(D(tierline_memory_names)(&(tierline_weight){weights[0], BYTES}, 1, &named), -EBUSY);
    EQUAL(D(tierline_capturing)(), true);
    OK(D(cuStreamEndCapture)(stream, &graph));
    EQUAL(D(tierline_capturing)(), false);
    OK(D(cuGraphDestroy)(graph));
    OK(D(cuStreamDestroy)(stream));
    /* After a fault the driver copies nothing any more: not found is then not the answer. */
    CUfunction trap;
    OK(D(cuModuleGetFunction)(&trap, module, "sim_trap"));
    OK(D(cuLaunchKernel)(trap, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
    EQUAL(D(tierline_memory_names)(&(tierline_weight){weights[0], BYTES}, 1, &named), -EIO);
}

/* PyTorch's graphs allocate from a pool while a stream is captured. */
static void allocation_in_capture(void) {
    prepare();
    CUstream stream;
    CUgraph graph;
    CUdeviceptr address;
    OK(D(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING));
    uint64_t charged = access_held().charged_bytes;
    OK(D(cuStreamBeginCapture)(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    CUresult answer = D(cuMemAllocAsync)(&address, PIECE, stream);
    tierline_held held = access_held();
    EQUAL(held.charged_bytes, charged);
    EQUAL(held.bytes[TIERLINE_HELD_POOL], 0);
    EQUAL(held.graph_bytes, answer == CUDA_SUCCESS ? PIECE : 0);
    /* The interposer's questions left the capture valid, whatever the driver
     * thinks of the call. */
    CUresult end = D(cuStreamEndCapture)(stream, &graph);
    CHECK(end == CUDA_SUCCESS || answer != CUDA_SUCCESS);
    if (end == CUDA_SUCCESS) {
        OK(D(cuGraphDestroy)(graph));
    }
    OK(D(cuStreamDestroy)(stream));
}

struct seen {
    atomic_int calls;
    atomic_uint weights;
    int answer;
    char symbol[64];
    CUstream stream;
    bool per_thread;
    bool calls_driver;
};

static int gate(const struct tierline_call *call, void *context) {
    struct seen *seen = context;
    atomic_fetch_add(&seen->calls, 1);
    for (uint32_t i = 0; i < call->weight_count; i++) {
        atomic_fetch_or(&seen->weights, 1U << call->weights[i]);
    }
    if (seen->calls_driver) {
        CUdeviceptr address;
        OK(D(cuMemAlloc)(&address, 64));
        OK(D(cuMemFree)(address));
        OK(D(cuMemsetD8)(scratch + PIECE, 0, 8));
    }
    strncpy(seen->symbol, call->symbol, sizeof seen->symbol - 1);
    seen->stream = call->stream;
    seen->per_thread = call->per_thread;
    return seen->answer;
}

static void gated(void) {
    prepare();
    watch();
    static struct seen seen;
    CUstream stream;
    OK(D(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING));
    EQUAL(D(tierline_gate_set)(gate, &seen), 0);
    launch(3, stream);
    EQUAL(seen.calls, 1);
    EQUAL(seen.weights, 1U << 3);
    CHECK(seen.stream == stream);
    bool per_thread = getenv("ACCESS_PER_THREAD") != NULL;
    EQUAL(seen.per_thread, per_thread);
    CHECK(strcmp(seen.symbol, per_thread ? "cuLaunchKernel_ptsz" : "cuLaunchKernel") == 0);
    CUlaunchConfig config = {1, 1, 1, 32, 1, 1, 0, stream, NULL, 0};
    struct gemm_parameters p;
    seen.stream = NULL;
    OK(D(cuLaunchKernelEx)(&config, gemm, gemm_of(&p, 1), NULL));
    CHECK(seen.stream == stream);
    OK(D(cuMemsetD8)(scratch + PIECE, 0, 8));
    EQUAL(seen.calls, 3);
    /* A refusal reaches the program, and not the driver. */
    seen.answer = CUDA_ERROR_LAUNCH_TIMEOUT;
    FAILS(D(cuLaunchKernel)(gemm, 1, 1, 1, 32, 1, 1, 0, stream, gemm_of(&p, 2), NULL),
          CUDA_ERROR_LAUNCH_TIMEOUT);
    FAILS(D(cuMemsetD8)(scratch + PIECE, 0, 8), CUDA_ERROR_LAUNCH_TIMEOUT);
    FAILS(D(cuMemcpyHtoD)(scratch, &seen, 8), CUDA_ERROR_LAUNCH_TIMEOUT);
    expect_order((const uint32_t[]){3, 1}, 2);
    /* The driver functions that a gate calls are its own business. */
    seen.answer = CUDA_SUCCESS;
    seen.calls_driver = true;
    seen.calls = 0;
    uint64_t held = access_held().count[TIERLINE_HELD_DEVICE];
    launch(0, stream);
    EQUAL(seen.calls, 1);
    EQUAL(access_held().count[TIERLINE_HELD_DEVICE], held);
    seen.calls_driver = false;
    /* A graph asks once, for all its kernels. */
    CUgraphExec exec = capture((const int[]){4, 5}, 2, stream);
    seen.calls = 0;
    seen.weights = 0;
    OK(D(cuGraphLaunch)(exec, stream));
    EQUAL(seen.calls, 1);
    EQUAL(seen.weights, 3U << 4);
    EQUAL(D(tierline_gate_set)(NULL, NULL), 0);
    launch(0, stream);
    EQUAL(seen.calls, 1);
    OK(D(cuStreamSynchronize)(stream));
    OK(D(cuGraphExecDestroy)(exec));
    OK(D(cuStreamDestroy)(stream));
}

enum { MANY = 6000, SMALL = 64 };

/* More than a launch can name. */
static void many_weights(void) {
    static tierline_weight list[MANY];
    CUdeviceptr base;
    CUdeviceptr copy;
    CUstream stream;
    CUgraph graph;
    CUgraphExec exec;
    access_device();
    OK(D(cuMemAlloc)(&base, MANY * SMALL));
    OK(D(cuMemAlloc)(&copy, MANY * SMALL));
    OK(D(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING));
    for (CUdeviceptr i = 0; i < MANY; i++) {
        list[i] = (tierline_weight){base + i * SMALL, SMALL};
    }
    EQUAL(D(tierline_observer_watch)(list, MANY), 0);
    OK(D(cuMemcpyDtoDAsync)(copy, base, MANY * SMALL, stream));
    EQUAL(totals().reads, MANY);
    OK(D(cuStreamBeginCapture)(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    OK(D(cuMemcpyDtoDAsync)(copy, base, MANY * SMALL, stream));
    OK(D(cuStreamEndCapture)(stream, &graph));
    OK(D(cuGraphInstantiate)(&exec, graph, 0));
    OK(D(cuGraphLaunch)(exec, stream));
    EQUAL(totals().reads, 2 * MANY);
    OK(D(cuStreamSynchronize)(stream));
    OK(D(cuGraphExecDestroy)(exec));
    OK(D(cuGraphDestroy)(graph));
    OK(D(cuStreamDestroy)(stream));
}

enum { THREADS = 3, ROUNDS = 200 };
static CUcontext shared;
static atomic_bool stop;

static void *launch_many(void *context) {
    own_output = scratch + 64 + (CUdeviceptr)(uintptr_t)context * 64;
    CUstream stream;
    OK(D(cuCtxSetCurrent)(shared));
    OK(D(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING));
    CUgraphExec exec = capture((const int[]){0, 5}, 2, stream);
    for (int i = 0; i < ROUNDS; i++) {
        launch(i % WEIGHTS, stream);
        if (i % 20 == 0) {
            OK(D(cuGraphLaunch)(exec, stream));
        }
    }
    OK(D(cuStreamSynchronize)(stream));
    OK(D(cuGraphExecDestroy)(exec));
    OK(D(cuStreamDestroy)(stream));
    return NULL;
}

static void *disturb(void *context) {
    static struct seen seen;
    (void)context;
    OK(D(cuCtxSetCurrent)(shared));
    while (!atomic_load(&stop)) {
        CUmodule other;
        watch();
        D(tierline_gate_set)(NULL, &seen);
        access_function(&other, "sim_spin");
        OK(D(cuModuleUnload)(other));
        D(tierline_observer_restart)();
    }
    return NULL;
}

static void many_threads(void) {
    prepare();
    shared = access_device();
    watch();
    pthread_t threads[THREADS + 1];
    for (int i = 0; i < THREADS; i++) {
        CHECK(pthread_create(&threads[i], NULL, launch_many, (void *)(uintptr_t)i) == 0);
    }
    CHECK(pthread_create(&threads[THREADS], NULL, disturb, NULL) == 0);
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
    }
    atomic_store(&stop, true);
    pthread_join(threads[THREADS], NULL);
    watch();
    launch_many(NULL);
    EQUAL(totals().launches, ROUNDS + 2 * ROUNDS / 20);
    EQUAL(totals().reads, ROUNDS + 2 * ROUNDS / 20);
}

enum { STALE_WORDS = 1024 };

/* Leaves addresses of a weight on the stack. */
__attribute__((noinline)) static void leave_addresses(void) {
    uint64_t words[STALE_WORDS];
    for (int i = 0; i < STALE_WORDS; i++) {
        words[i] = weights[0];
    }
    __asm__ volatile("" : : "r"(words) : "memory");
}

/* How many such addresses a structure that nobody writes holds. */
__attribute__((noinline)) static int stale_addresses(void) {
    uint64_t words[STALE_WORDS];
    uint64_t *seen = words;
    __asm__ volatile("" : "+r"(seen) : : "memory");
    int count = 0;
    for (int i = 0; i < STALE_WORDS; i++) {
        count += seen[i] == weights[0];
    }
    return count;
}

static void stale_stack(void) {
    prepare();
    leave_addresses();
    CHECK(stale_addresses() > STALE_WORDS / 2);
    leave_addresses();
    D(tierline_stack_clear)();
    CHECK(stale_addresses() < STALE_WORDS / 16); /* a sanitizer may have put its own there */
}

int main(int argc, char **argv) {
    static const struct scenario scenarios[] = {
        {"every_launch", every_launch},
        {"gaps", gaps},
        {"bad_ranges", bad_ranges},
        {"copies", copies},
        {"unloaded_module", unloaded_module},
        {"captured_graph", captured_graph},
        {"built_graph", built_graph},
        {"timed_graph", timed_graph},
        {"own_graphs", own_graphs},
        {"tables", tables},
        {"allocation_in_capture", allocation_in_capture},
        {"gated", gated},
        {"many_weights", many_weights},
        {"many_threads", many_threads},
        {"stale_stack", stale_stack},
    };
    return access_run(argc, argv, scenarios, sizeof scenarios / sizeof *scenarios);
}
