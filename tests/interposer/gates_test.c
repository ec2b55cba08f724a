/* Graphs whose weights stream through a ring that is too small for them: right bytes in any order.
 *
 * The program is one process with the interposer linked in. The weights lie in extents of which
 * some are resident and the others share the slots of a ring; a stream of its own plays the agent,
 * with the operations that the agent uses. The gate around launches is a small one, with the
 * contract of graph_gate.h. What a kernel computes depends on every byte that it reads.
 */
#include <cuda.h>
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "access.h"
#include "gate.h"
#include "observer.h"
#include "simcuda.h"

enum {
    EXTENT = 2 << 20,
    EXTENTS = 10,
    RESIDENT = 3, /* extents 0, 4 and 8 */
    STREAMED = EXTENTS - RESIDENT,
    WEIGHTS = 14,
    SLOTS_MOST = 4,
    RELEASED = 0x7fffffff,
};

static uint32_t slots = 2;
static unsigned char *content;
static CUdeviceptr base, agent_slots, steps;
static CUmemGenericAllocationHandle slot_memory[SLOTS_MOST], private_memory[EXTENTS];
static uint32_t *words; /* published at 0, consumed at 16 */
static tierline_weight weights[WEIGHTS];
static CUstream agent;
static CUfunction gemm;
static CUmodule module;

/* What the gate did and knows. */
static struct {
    bool streams;
    uint32_t consumed; /* given back, or to be given back by what was launched */
    uint32_t passes, fetched, graph_launches, eager_launches;
    uint32_t most_loose;
} job;

/* ---- memory */

static bool is_resident(uint32_t extent) {
    return extent % 4 == 0;
}

/* Streamed extents below an extent. */
static uint32_t streamed_below(uint32_t extent) {
    return extent - (extent + 3) / 4;
}

static uint32_t extent_of(uint32_t streamed) {
    uint32_t extent = 0;
    while (is_resident(extent) || streamed_below(extent) < streamed) {
        extent++;
    }
    return extent;
}

static CUmemGenericAllocationHandle create(void) {
    CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                      .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
    CUmemGenericAllocationHandle handle;
    OK(cuMemCreate(&handle, EXTENT, &properties, 0));
    return handle;
}

static void map(CUdeviceptr address, CUmemGenericAllocationHandle handle) {
    CUmemAccessDesc access = {{.type = CU_MEM_LOCATION_TYPE_DEVICE},
                              CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    OK(cuMemMap(address, EXTENT, 0, handle, 0));
    OK(cuMemSetAccess(address, EXTENT, &access, 1));
}

static void make_arena(void) {
    content = malloc((size_t)EXTENTS * EXTENT);
    CHECK(content != NULL);
    uint64_t state = 1;
    for (size_t i = 0; i < (size_t)EXTENTS * EXTENT; i += 8) {
        state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        memcpy(content + i, &state, 8);
    }
    OK(cuMemHostRegister(content, (size_t)EXTENTS * EXTENT, 0));
    OK(cuMemAddressReserve(&base, (size_t)EXTENTS * EXTENT, 0, 0, 0));
    OK(cuMemAddressReserve(&agent_slots, (size_t)SLOTS_MOST * EXTENT, 0, 0, 0));
    for (uint32_t s = 0; s < SLOTS_MOST; s++) {
        slot_memory[s] = create();
        map(agent_slots + (CUdeviceptr)s * EXTENT, slot_memory[s]);
    }
    for (uint32_t x = 0; x < EXTENTS; x++) {
        CUdeviceptr address = base + (CUdeviceptr)x * EXTENT;
        if (is_resident(x)) {
            map(address, create());
            OK(cuMemcpyHtoD(address, content + (size_t)x * EXTENT, EXTENT));
        } else {
            map(address, slot_memory[streamed_below(x) % slots]);
        }
    }
}

/* Weights of unequal sizes; some share an extent, some lie in two. */
static void lay_out(void) {
    uint64_t at = 0;
    for (uint32_t w = 0; w < WEIGHTS; w++) {
        uint64_t bytes = (uint64_t)EXTENTS * EXTENT / WEIGHTS / 4096 * 4096;
        bytes = w % 2 == 0 ? bytes - 65536 : bytes + 65536;
        weights[w] = (tierline_weight){base + at, bytes};
        at += bytes;
    }
    CHECK(at <= (uint64_t)EXTENTS * EXTENT);
    EQUAL(tierline_observer_watch(weights, WEIGHTS), 0);
}

/* ---- the agent */

static void write_word(CUstream stream, uint32_t index, uint32_t value) {
    OK(cuStreamWriteValue32(stream, (uint64_t)(uintptr_t)&words[index], value, 0));
}

static void wait_word(CUstream stream, uint32_t index, uint32_t value) {
    OK(cuStreamWaitValue32(stream, (uint64_t)(uintptr_t)&words[index], value,
                           CU_STREAM_WAIT_VALUE_GEQ));
}

static void start_stream(void) {
    __atomic_store_n(&words[0], 0, __ATOMIC_SEQ_CST);
    __atomic_store_n(&words[16], 0, __ATOMIC_SEQ_CST);
    for (uint32_t j = 0; j < STREAMED; j++) {
        if (j + 1 > slots) {
            wait_word(agent, 16, j + 1 - slots);
        }
        OK(cuMemcpyHtoDAsync(agent_slots + (CUdeviceptr)(j % slots) * EXTENT,
                             content + (size_t)extent_of(j) * EXTENT, EXTENT, agent));
        write_word(agent, 0, j + 1);
    }
    job.streams = true;
    job.consumed = 0;
    job.passes++;
}

/* Nothing of the job is in flight. */
static void end_stream(void) {
    if (job.streams) {
        __atomic_store_n(&words[16], RELEASED, __ATOMIC_SEQ_CST);
        OK(cuStreamSynchronize(agent));
        job.streams = false;
    }
}

static void drop_private(void) {
    for (uint32_t x = 0; x < EXTENTS; x++) {
        if (private_memory[x] != 0) {
            CUdeviceptr address = base + (CUdeviceptr)x * EXTENT;
            OK(cuMemUnmap(address, EXTENT));
            OK(cuMemRelease(private_memory[x]));
            private_memory[x] = 0;
            map(address, slot_memory[streamed_below(x) % slots]);
        }
    }
}

/* The program's streams are idle. */
static void end_job(void) {
    end_stream();
    drop_private();
}

/* ---- the gate */

static bool gate_arena(uint64_t generation, const uint32_t *named, uint32_t count,
                       uint32_t *arena) {
    *arena = 3;
    return generation == observer_generation() && count > 0 && named[0] < WEIGHTS;
}

static bool gate_words(uint32_t arena, uint64_t *published, uint64_t *consumed) {
    *published = (uint64_t)(uintptr_t)&words[0];
    *consumed = (uint64_t)(uintptr_t)&words[16];
    return arena == 3;
}

static uint32_t gate_ring(uint32_t arena) {
    return arena == 3 ? slots : 0;
}

static bool gate_span(uint32_t arena, uint64_t generation, uint32_t weight, uint32_t *first,
                      uint32_t *past) {
    uint64_t begin = weights[weight].address - base;
    *first = streamed_below((uint32_t)(begin / EXTENT));
    *past = streamed_below((uint32_t)((begin + weights[weight].bytes - 1) / EXTENT) + 1);
    return arena == 3 && generation == observer_generation() && weight < WEIGHTS;
}

static void gate_start(uint32_t arena, uint64_t generation, const uint32_t *named, uint32_t count,
                       struct tl_cursor *cursor) {
    (void)arena, (void)generation, (void)count;
    *cursor = (struct tl_cursor){.layer = named[0]};
}

/* The learned order is that of the addresses; a layer is a weight. */
static bool gate_need(uint32_t arena, uint64_t generation, const uint32_t *named, uint32_t count,
                      struct tl_cursor *cursor, struct tl_need *out) {
    *out = (struct tl_need){.lowest = UINT32_MAX};
    uint32_t last = 0;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t first = 0;
        uint32_t past = 0;
        CHECK(gate_span(arena, generation, named[i], &first, &past));
        if (past > first) {
            out->streamed = true;
            out->lowest = first < out->lowest ? first : out->lowest;
            out->needs = past > out->needs ? past : out->needs;
        }
        last = named[i] > last ? named[i] : last;
    }
    if (last < cursor->layer || (out->streamed && out->lowest < cursor->consumed)) {
        return false;
    }
    /* What the next weight reads stays. */
    out->releases = STREAMED;
    if (last + 1 < WEIGHTS) {
        uint32_t past = 0;
        CHECK(gate_span(arena, generation, last + 1, &out->releases, &past));
    }
    cursor->layer = last + 1;
    cursor->consumed = out->releases;
    return true;
}

static void fetch(uint32_t weight) {
    uint64_t begin = weights[weight].address - base;
    uint64_t end = begin + weights[weight].bytes;
    for (uint32_t x = (uint32_t)(begin / EXTENT); (uint64_t)x * EXTENT < end; x++) {
        if (is_resident(x) || private_memory[x] != 0) {
            continue;
        }
        CUdeviceptr address = base + (CUdeviceptr)x * EXTENT;
        OK(cuMemUnmap(address, EXTENT));
        private_memory[x] = create();
        map(address, private_memory[x]);
        OK(cuMemcpyHtoD(address, content + (size_t)x * EXTENT, EXTENT));
        job.fetched++;
    }
}

static int gate_launch(const struct tl_graph_plan *plans, uint32_t count, void *stream,
                       bool per_thread) {
    EQUAL(per_thread, false);
    EQUAL(count, 1);
    const struct tl_graph_plan *plan = &plans[0];
    EQUAL(plan->arena, 3);
    CHECK(plan->generation == observer_generation());
    job.graph_launches++;
    job.most_loose = plan->loose_count > job.most_loose ? plan->loose_count : job.most_loose;
    if (plan->loose_count > 0) {
        OK(cuStreamSynchronize(stream));
        for (uint32_t i = 0; i < plan->loose_count; i++) {
            fetch(plan->loose[i]);
        }
    }
    if (plan->needs == 0) {
        return CUDA_SUCCESS;
    }
    if (job.streams && job.consumed > plan->lowest) {
        OK(cuStreamSynchronize(stream));
        end_stream();
    }
    if (!job.streams) {
        start_stream();
    }
    CHECK(plan->consumed_before <= plan->lowest);
    if (plan->consumed_before > job.consumed) {
        write_word(stream, 16, plan->consumed_before);
        job.consumed = plan->consumed_before;
    }
    CHECK(plan->consumed == 0 || plan->consumed > plan->consumed_before);
    job.consumed = plan->consumed > job.consumed ? plan->consumed : job.consumed;
    return CUDA_SUCCESS;
}

static const struct tl_graph_gates graph_questions = {.arena = gate_arena,
                                                      .words = gate_words,
                                                      .ring = gate_ring,
                                                      .span = gate_span,
                                                      .start = gate_start,
                                                      .need = gate_need,
                                                      .launch = gate_launch};

/* A launch outside graphs: what it names is waited for, or fetched, and all below is given back. */
static int gate_begin(struct tierline_call *call) {
    if (call->graph || call->captured || call->weight_count == 0) {
        return CUDA_SUCCESS;
    }
    struct tl_cursor cursor = {.consumed = job.consumed};
    struct tl_need need;
    job.eager_launches++;
    if (!job.streams) {
        start_stream();
    }
    if (!gate_need(3, call->generation, call->weights, call->weight_count, &cursor, &need)) {
        OK(cuStreamSynchronize(call->stream));
        for (uint32_t i = 0; i < call->weight_count; i++) {
            fetch(call->weights[i]);
        }
        return CUDA_SUCCESS;
    }
    if (need.streamed) {
        if (need.lowest > job.consumed) {
            write_word(call->stream, 16, need.lowest);
            job.consumed = need.lowest;
        }
        wait_word(call->stream, 0, need.needs);
    }
    call->held = need.releases + 1;
    return CUDA_SUCCESS;
}

static void gate_end(struct tierline_call *call) {
    if (call->held - 1 > job.consumed) {
        write_word(call->stream, 16, call->held - 1);
        job.consumed = call->held - 1;
    }
}

static void gate_leave(void *stream, bool per_thread) {
    (void)stream, (void)per_thread;
}

static const struct own_gate fake_gate = {
    .begin = gate_begin, .end = gate_end, .leave = gate_leave, .graphs = &graph_questions};

/* ---- what the tests launch */

static void prepare(void) {
    access_open();
    access_device();
    make_arena();
    OK(cuMemHostAlloc((void **)&words, 4096, CU_MEMHOSTALLOC_PORTABLE));
    memset(words, 0, 4096);
    OK(cuMemAlloc(&steps, 4096));
    OK(cuMemsetD8(steps, 0, 4096));
    OK(cuStreamSynchronize(NULL));
    OK(cuStreamCreate(&agent, CU_STREAM_NON_BLOCKING));
    gemm = access_function(&module, "sim_gemm_like");
    OK(cuFuncLoad(gemm)); /* which waits for all streams, also for those that wait for a flag */
    lay_out();
    gate_own(&fake_gate);
}

struct parameters {
    uint64_t weights, bytes, in, out, duration;
    void *pointers[5];
};

/* Step s reads the outcome of step s - 1. */
static void **parameters_of(struct parameters *p, uint32_t weight, uint32_t in, uint32_t out) {
    *p = (struct parameters){weights[weight].address,
                             weights[weight].bytes,
                             steps + 8 * (CUdeviceptr)in,
                             steps + 8 * (CUdeviceptr)out,
                             0,
                             {0}};
    uint64_t *list[] = {&p->weights, &p->bytes, &p->in, &p->out, &p->duration};
    for (int i = 0; i < 5; i++) {
        p->pointers[i] = list[i];
    }
    return p->pointers;
}

static CUDA_KERNEL_NODE_PARAMS node_of(struct parameters *p, uint32_t weight, uint32_t in,
                                       uint32_t out) {
    return (CUDA_KERNEL_NODE_PARAMS){.func = gemm,
                                     .gridDimX = 1,
                                     .gridDimY = 1,
                                     .gridDimZ = 1,
                                     .blockDimX = 32,
                                     .blockDimY = 1,
                                     .blockDimZ = 1,
                                     .kernelParams = parameters_of(p, weight, in, out)};
}

static void launch(uint32_t weight, uint32_t in, uint32_t out, CUstream stream) {
    struct parameters p;
    OK(cuLaunchKernel(gemm, 1, 1, 1, 32, 1, 1, 0, stream, parameters_of(&p, weight, in, out),
                      NULL));
}

static uint64_t hash_of(uint64_t seed, uint32_t weight) {
    return simcuda_hash(seed, content + (weights[weight].address - base), weights[weight].bytes);
}

static uint64_t step(uint32_t index) {
    uint64_t value = 0;
    OK(cuMemcpyDtoH(&value, steps + 8 * (CUdeviceptr)index, 8));
    return value;
}

/* Hashes of a chain, by the CPU. */
static uint64_t expected(const uint32_t *order, uint32_t count) {
    uint64_t value = 0;
    for (uint32_t i = 0; i < count; i++) {
        value = hash_of(value, order[i]);
    }
    return value;
}

static CUgraph capture(const uint32_t *order, uint32_t count, CUstream stream) {
    CUgraph graph;
    OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    for (uint32_t i = 0; i < count; i++) {
        launch(order[i], i, i + 1, stream);
    }
    OK(cuStreamEndCapture(stream, &graph));
    return graph;
}

static const uint32_t in_order[WEIGHTS] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13};

static size_t nodes_in(CUgraph graph) {
    size_t count = 0;
    OK(cuGraphGetNodes(graph, NULL, &count));
    return count;
}

static uint64_t gates_added(void) {
    return simcuda_calls("cuGraphAddBatchMemOpNode");
}

static void run_graph(CUgraphExec exec, CUstream stream) {
    OK(cuMemsetD8Async(steps + 8, 0, 4088, stream));
    OK(cuGraphLaunch(exec, stream));
    OK(cuStreamSynchronize(stream));
}

/* ---- scenarios */

static CUgraphExec instantiate(CUgraph graph) {
    CUgraphExec exec;
    OK(cuGraphInstantiate(&exec, graph, 0));
    return exec;
}

typedef CUresult old_instantiate(CUgraphExec *, CUgraph, CUgraphNode *, char *, size_t);

static CUgraphExec instantiate_by(int way, CUgraph graph) {
    CUgraphExec exec;
    CUDA_GRAPH_INSTANTIATE_PARAMS parameters = {0};
    CUgraphNode wrong;
    char log[16];
    static const char *const names[] = {"cuGraphInstantiate", "cuGraphInstantiate_v2"};
    if (way == 0) {
        return instantiate(graph);
    }
    if (way == 1) {
        OK(cuGraphInstantiateWithParams(&exec, graph, &parameters));
        return exec;
    }
    old_instantiate *old = (old_instantiate *)dlsym(RTLD_DEFAULT, names[way - 2]);
    CHECK(old != NULL);
    OK(old(&exec, graph, &wrong, log, sizeof log));
    return exec;
}

static void captured_chain(void) {
    CUstream stream;
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CUgraph graph = capture(in_order, WEIGHTS, stream);
    for (int way = 0; way < 4; way++) {
        uint64_t before = gates_added();
        CUgraphExec exec = instantiate_by(way, graph);
        CHECK(gates_added() > before);
        EQUAL(nodes_in(graph), WEIGHTS);
        job.passes = 0;
        for (uint32_t launches = 1; launches <= 3; launches++) {
            run_graph(exec, stream);
            CHECK(step(WEIGHTS) == expected(in_order, WEIGHTS));
            EQUAL(job.passes, launches); /* each pass reads the weights again */
        }
        EQUAL(job.fetched, 0);
        EQUAL(__atomic_load_n(&words[16], __ATOMIC_SEQ_CST), STREAMED); /* all given back */
        OK(cuGraphExecDestroy(exec));
        end_job();
    }
    OK(cuGraphDestroy(graph));
    OK(cuStreamDestroy(stream));
}

/* Kernels that may begin before the one in front of them is through. */
static void programmatic_edges(void) {
    CUstream stream;
    CUgraph graph;
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    for (uint32_t w = 0; w < WEIGHTS; w++) {
        CUlaunchAttribute attribute = {.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
                                       .value.programmaticStreamSerializationAllowed = 1};
        CUlaunchConfig config = {1, 1, 1, 32, 1, 1, 0, stream, &attribute, w % 3 != 0};
        struct parameters p;
        OK(cuLaunchKernelEx(&config, gemm, parameters_of(&p, w, w, w + 1), NULL));
    }
    OK(cuStreamEndCapture(stream, &graph));
    CUgraphNode from[WEIGHTS];
    CUgraphNode to[WEIGHTS];
    size_t edges = WEIGHTS;
    FAILS(cuGraphGetEdges(graph, from, to, NULL, &edges), CUDA_ERROR_LOSSY_QUERY);
    CUgraphExec exec = instantiate(graph);
    for (int i = 0; i < 2; i++) {
        run_graph(exec, stream);
        CHECK(step(WEIGHTS) == expected(in_order, WEIGHTS));
    }
    EQUAL(job.fetched, 0);
    CHECK(gates_added() > 0);
    OK(cuGraphExecDestroy(exec));
    OK(cuGraphDestroy(graph));
    OK(cuStreamDestroy(stream));
}

static void nothing_streamed(void) {
    CUstream stream;
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CUgraph graph = capture((const uint32_t[]){0}, 1, stream); /* resident */
    uint64_t clones = simcuda_calls("cuGraphClone");
    CUgraphExec exec = instantiate(graph);
    EQUAL(simcuda_calls("cuGraphClone"), clones);
    run_graph(exec, stream);
    CHECK(step(1) == expected((const uint32_t[]){0}, 1));
    EQUAL(job.passes, 0);
    EQUAL(job.graph_launches, 1);
    OK(cuGraphExecDestroy(exec));
    OK(cuGraphDestroy(graph));
    OK(cuStreamDestroy(stream));
}

/* The same weights in every order that a shuffle gives, through rings of every length. */
static void any_order(void) {
    CUstream stream;
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    uint64_t state = 7;
    uint32_t with_loose = 0;
    for (int round = 0; round < 12; round++) {
        uint32_t order[WEIGHTS];
        memcpy(order, in_order, sizeof order);
        for (uint32_t i = WEIGHTS; i > 1 && round > 0; i--) {
            state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
            /* A few that are out of place, or all. */
            uint32_t other = round % 3 == 0 ? i - 1 : (uint32_t)(state >> 33) % i;
            other = round % 3 == 1 && i % 5 != 0 ? i - 1 : other;
            uint32_t kept = order[i - 1];
            order[i - 1] = order[other];
            order[other] = kept;
        }
        job.most_loose = 0;
        CUgraph graph = capture(order, WEIGHTS, stream);
        CUgraphExec exec = instantiate(graph);
        run_graph(exec, stream);
        CHECK(step(WEIGHTS) == expected(order, WEIGHTS));
        run_graph(exec, stream);
        CHECK(step(WEIGHTS) == expected(order, WEIGHTS));
        with_loose += job.most_loose > 0;
        OK(cuGraphExecDestroy(exec));
        OK(cuGraphDestroy(graph));
        end_job();
    }
    CHECK(with_loose > 0 && with_loose < 12);
    OK(cuStreamDestroy(stream));
}

/* Two branches, built backwards, that read in turns; then one node behind both. */
static void built_branches(void) {
    CUstream stream;
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CUgraph graph;
    CUgraphNode nodes[WEIGHTS];
    OK(cuGraphCreate(&graph, 0));
    for (uint32_t w = WEIGHTS; w-- > 0;) {
        struct parameters p;
        uint32_t in = w >= 2 ? w - 1 : 0; /* outcome of w is at w + 1 */
        CUDA_KERNEL_NODE_PARAMS node = node_of(&p, w, in, w + 1);
        OK(cuGraphAddKernelNode(&nodes[w], graph, NULL, 0, &node));
        if (w + 2 < WEIGHTS) {
            OK(cuGraphAddDependencies(graph, &nodes[w], &nodes[w + 2], NULL, 1));
        }
    }
    OK(cuGraphAddDependencies(graph, &nodes[WEIGHTS - 2], &nodes[WEIGHTS - 1], NULL, 1));
    CUgraphExec exec = instantiate(graph);
    EQUAL(nodes_in(graph), WEIGHTS);
    uint32_t even[WEIGHTS / 2];
    uint32_t odd[WEIGHTS / 2];
    for (uint32_t i = 0; i < WEIGHTS / 2; i++) {
        even[i] = 2 * i;
        odd[i] = 2 * i + 1;
    }
    for (int i = 0; i < 2; i++) {
        run_graph(exec, stream);
        CHECK(step(WEIGHTS - 1) == expected(even, WEIGHTS / 2));
        CHECK(step(WEIGHTS) == expected(odd, WEIGHTS / 2));
    }
    EQUAL(job.fetched, 0);
    OK(cuGraphExecDestroy(exec));
    OK(cuGraphDestroy(graph));
    OK(cuStreamDestroy(stream));
}

/* Pieces of a model as graphs, with launches of its own between them. */
static void pieces(void) {
    CUstream stream;
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CUgraph first = capture(in_order, 5, stream);
    CUgraph second = capture(in_order + 7, 5, stream);
    CUgraphExec execs[] = {instantiate(first), instantiate(second)};
    for (uint32_t pass = 1; pass <= 2; pass++) {
        OK(cuMemsetD8Async(steps, 0, 4096, stream));
        OK(cuGraphLaunch(execs[0], stream));
        CHECK(cuStreamSynchronize(stream) == CUDA_SUCCESS);
        uint64_t after_first = step(5);
        CHECK(after_first == expected(in_order, 5));
        launch(5, 5, 6, stream);
        launch(6, 6, 0, stream); /* where the second piece begins */
        OK(cuGraphLaunch(execs[1], stream));
        launch(12, 5, 6, stream);
        launch(13, 6, 7, stream);
        OK(cuStreamSynchronize(stream));
        CHECK(step(7) == expected(in_order, WEIGHTS));
        EQUAL(job.passes, pass);
        EQUAL(job.fetched, 0);
    }
    OK(cuGraphExecDestroy(execs[0]));
    OK(cuGraphExecDestroy(execs[1]));
    OK(cuGraphDestroy(first));
    OK(cuGraphDestroy(second));
    OK(cuStreamDestroy(stream));
}

static void child_graphs_and_copies(void) {
    CUstream stream;
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CUgraph inner = capture(in_order + 4, 3, stream);
    CUdeviceptr copied;
    OK(cuMemAlloc(&copied, EXTENT));
    OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    launch(0, 10, 11, stream);
    launch(2, 11, 12, stream);
    OK(cuMemcpyDtoDAsync(copied, weights[3].address, EXTENT / 2, stream));
    CUgraph graph;
    OK(cuStreamEndCapture(stream, &graph));
    CUgraphNode list[3];
    CUgraphNode child;
    CUgraphNode last;
    size_t count = 3;
    OK(cuGraphGetNodes(graph, list, &count));
    EQUAL(count, 3);
    OK(cuGraphAddChildGraphNode(&child, graph, &list[2], 1, inner));
    struct parameters p;
    CUDA_KERNEL_NODE_PARAMS node = node_of(&p, 9, 12, 13);
    OK(cuGraphAddKernelNode(&last, graph, &child, 1, &node));
    CUgraphExec exec = instantiate(graph);
    for (int i = 0; i < 2; i++) {
        run_graph(exec, stream);
        CHECK(step(13) == expected((const uint32_t[]){0, 2, 9}, 3));
        CHECK(step(3) == expected(in_order + 4, 3));
        unsigned char *seen = malloc(EXTENT / 2);
        CHECK(seen != NULL);
        OK(cuMemcpyDtoH(seen, copied, EXTENT / 2));
        CHECK(memcmp(seen, content + (weights[3].address - base), EXTENT / 2) == 0);
        free(seen);
    }
    /* A node inside the child, and the copy, are known by the program's handles. */
    CUgraph embedded;
    CUgraphNode inside[3];
    OK(cuGraphChildGraphNodeGetGraph(child, &embedded));
    OK(cuGraphGetNodes(embedded, inside, &count));
    node = node_of(&p, 13, 0, 1);
    OK(cuGraphExecKernelNodeSetParams(exec, inside[0], &node));
    CUDA_MEMCPY3D box;
    CUcontext context;
    OK(cuCtxGetCurrent(&context));
    OK(cuGraphMemcpyNodeGetParams(list[2], &box));
    box.srcDevice = weights[12].address;
    OK(cuGraphExecMemcpyNodeSetParams(exec, list[2], &box, context));
    run_graph(exec, stream);
    CHECK(step(3) == expected((const uint32_t[]){13, 5, 6}, 3));
    unsigned char seen[64];
    OK(cuMemcpyDtoH(seen, copied, sizeof seen));
    CHECK(memcmp(seen, content + (weights[12].address - base), sizeof seen) == 0);
    OK(cuGraphExecDestroy(exec));
    OK(cuGraphDestroy(graph));
    OK(cuGraphDestroy(inner));
    end_job(); /* memory is freed when all streams are idle, the agent's too */
    OK(cuMemFree(copied));
    OK(cuStreamDestroy(stream));
}

static void changed_nodes(void) {
    CUstream stream;
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CUgraph graph = capture(in_order, WEIGHTS, stream);
    CUgraphNode nodes[WEIGHTS];
    size_t count = WEIGHTS;
    OK(cuGraphGetNodes(graph, nodes, &count));
    CUgraphExec exec = instantiate(graph);
    run_graph(exec, stream);
    /* Another weight, far away: it is fetched. */
    struct parameters p;
    CUDA_KERNEL_NODE_PARAMS node = node_of(&p, 13, 1, 2);
    OK(cuGraphExecKernelNodeSetParams(exec, nodes[1], &node));
    uint32_t order[WEIGHTS];
    memcpy(order, in_order, sizeof order);
    order[1] = 13;
    run_graph(exec, stream);
    CHECK(step(WEIGHTS) == expected(order, WEIGHTS));
    CHECK(job.fetched > 0 && job.most_loose > 0);
    end_job();
    /* And back again. */
    node = node_of(&p, 1, 1, 2);
    OK(cuGraphExecKernelNodeSetParams(exec, nodes[1], &node));
    job.most_loose = 0;
    run_graph(exec, stream);
    CHECK(step(WEIGHTS) == expected(in_order, WEIGHTS));
    EQUAL(job.most_loose, 0);
    /* Nodes can be switched off by the program's handles. */
    unsigned int enabled = 7;
    OK(cuGraphNodeSetEnabled(exec, nodes[WEIGHTS - 1], 0));
    OK(cuGraphNodeGetEnabled(exec, nodes[WEIGHTS - 1], &enabled));
    EQUAL(enabled, 0);
    run_graph(exec, stream);
    CHECK(step(WEIGHTS) == 0 && step(WEIGHTS - 1) == expected(in_order, WEIGHTS - 1));
    OK(cuGraphExecDestroy(exec));
    OK(cuGraphDestroy(graph));
    OK(cuStreamDestroy(stream));
}

static void updated(void) {
    CUstream stream;
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CUgraph graph = capture(in_order, WEIGHTS, stream);
    CUgraphExec exec = instantiate(graph);
    /* The same weights; then others, which need other gates. */
    uint32_t order[WEIGHTS];
    memcpy(order, in_order, sizeof order);
    for (int round = 0; round < 3; round++) {
        order[5] = round == 1 ? 12 : 5;
        CUgraph other = capture(order, WEIGHTS, stream);
        CUgraphExecUpdateResultInfo info;
        OK(cuGraphExecUpdate(exec, other, &info));
        EQUAL(info.result, CU_GRAPH_EXEC_UPDATE_SUCCESS);
        EQUAL(nodes_in(other), WEIGHTS);
        OK(cuGraphDestroy(other));
        job.most_loose = 0;
        run_graph(exec, stream);
        CHECK(step(WEIGHTS) == expected(order, WEIGHTS));
        EQUAL(job.most_loose > 0, round == 1);
        end_job();
    }
    /* What went wrong is said of the program's nodes. */
    CUgraph copying;
    OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    for (uint32_t i = 0; i < WEIGHTS - 1; i++) {
        launch(order[i], i, i + 1, stream);
    }
    OK(cuMemsetD8Async(steps, 0, 8, stream));
    OK(cuStreamEndCapture(stream, &copying));
    CUgraphNode nodes[WEIGHTS];
    size_t count = WEIGHTS;
    OK(cuGraphGetNodes(copying, nodes, &count));
    CUgraphExecUpdateResultInfo info;
    FAILS(cuGraphExecUpdate(exec, copying, &info), CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
    CHECK(info.errorNode == nodes[WEIGHTS - 1]);
    run_graph(exec, stream);
    CHECK(step(WEIGHTS) == expected(order, WEIGHTS));
    OK(cuGraphDestroy(copying));
    OK(cuGraphExecDestroy(exec));
    OK(cuGraphDestroy(graph));
    OK(cuStreamDestroy(stream));
}

/* Weights are watched anew, the words move, and in the end the arena goes. */
static void another_generation(void) {
    CUstream stream;
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CUgraph graph = capture(in_order, WEIGHTS, stream);
    CUgraphExec exec = instantiate(graph);
    run_graph(exec, stream);
    CHECK(step(WEIGHTS) == expected(in_order, WEIGHTS));
    end_job();
    OK(cuMemFreeHost(words));
    OK(cuMemHostAlloc((void **)&words, 8192, CU_MEMHOSTALLOC_PORTABLE));
    words += 1024;
    memset(words, 0, 4096);
    EQUAL(tierline_observer_watch(weights, WEIGHTS), 0);
    uint64_t added = gates_added();
    run_graph(exec, stream);
    CHECK(step(WEIGHTS) == expected(in_order, WEIGHTS));
    EQUAL(gates_added(), added);
    EQUAL(job.most_loose, 0);
    end_job();
    /* Everything is resident and nobody watches: what the gates stood for is gone. */
    for (uint32_t w = 0; w < WEIGHTS; w++) {
        fetch(w);
    }
    gate_own(NULL);
    EQUAL(tierline_observer_watch(NULL, 0), 0);
    OK(cuMemFreeHost(words - 1024));
    words = NULL;
    run_graph(exec, stream);
    CHECK(step(WEIGHTS) == expected(in_order, WEIGHTS));
    OK(cuGraphExecDestroy(exec));
    OK(cuGraphDestroy(graph));
    OK(cuStreamDestroy(stream));
    drop_private();
}

/* Instantiated before anything streamed: it has no gates, so all is fetched. */
static void instantiated_early(void) {
    CUstream stream;
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    gate_own(NULL);
    CUgraph graph = capture(in_order, WEIGHTS, stream);
    CUgraphExec exec = instantiate(graph);
    gate_own(&fake_gate);
    run_graph(exec, stream);
    CHECK(step(WEIGHTS) == expected(in_order, WEIGHTS));
    EQUAL(job.fetched, STREAMED);
    OK(cuGraphExecDestroy(exec));
    OK(cuGraphDestroy(graph));
    OK(cuStreamDestroy(stream));
}

/* The driver does not clone it, or does not instantiate it with gates: it runs as it is. */
static void without_gates(void) {
    CUstream stream;
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CUgraph graph = capture(in_order, WEIGHTS, stream);
    CUgraphExec exec = instantiate(graph);
    for (int i = 0; i < 2; i++) {
        run_graph(exec, stream);
        CHECK(step(WEIGHTS) == expected(in_order, WEIGHTS));
    }
    EQUAL(job.fetched, STREAMED);
    EQUAL(job.passes, 0);
    OK(cuGraphExecDestroy(exec));
    OK(cuGraphDestroy(graph));
    OK(cuStreamDestroy(stream));
}

static void not_cloned(void) {
    without_gates();
}

static void not_instantiated_with_gates(void) {
    without_gates();
    CHECK(gates_added() > 0);
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*run)(void);
    } scenarios[] = {
        {"captured_chain", captured_chain},
        {"programmatic_edges", programmatic_edges},
        {"nothing_streamed", nothing_streamed},
        {"any_order", any_order},
        {"built_branches", built_branches},
        {"pieces", pieces},
        {"child_graphs_and_copies", child_graphs_and_copies},
        {"changed_nodes", changed_nodes},
        {"updated", updated},
        {"another_generation", another_generation},
        {"instantiated_early", instantiated_early},
        {"not_cloned", not_cloned},
        {"not_instantiated_with_gates", not_instantiated_with_gates},
    };
    CHECK(argc == 3);
    slots = (uint32_t)atoi(argv[2]);
    for (size_t i = 0; i < sizeof scenarios / sizeof *scenarios; i++) {
        if (strcmp(argv[1], scenarios[i].name) == 0) {
            if (scenarios[i].run == not_cloned) {
                setenv("SIMCUDA_FAULTS", "call cuGraphClone 1+ NOT_SUPPORTED", 1);
            } else if (scenarios[i].run == not_instantiated_with_gates) {
                setenv("SIMCUDA_FAULTS", "call cuGraphInstantiateWithFlags 1 NOT_SUPPORTED", 1);
            }
            prepare();
            scenarios[i].run();
            end_job();
            gate_own(NULL);
            free(content);
            return 0;
        }
    }
    return 2;
}
