/* See ring_kit.h. */
#include "ring_kit.h"

#include <stdlib.h>
#include <string.h>

#include "kernel_node.h"
#include "launches/gate.h"
#include "launches/observer.h"
#include "simcuda.h"
#include "simcuda_upload.h"

enum {
    RESIDENT = 3, /* extents 0, 4 and 8 */
    SLOTS_MOST = 4,
    RELEASED = 0x7fffffff,
};
_Static_assert(STREAMED == EXTENTS - RESIDENT, "the others stream");

static uint32_t slots;
unsigned char *content;
CUdeviceptr base, steps;
static CUdeviceptr agent_slots;
static CUmemGenericAllocationHandle slot_memory[SLOTS_MOST], private_memory[EXTENTS];
uint32_t *words;
tierline_weight weights[WEIGHTS];
static CUstream agent;
CUfunction gemm;

struct job job;

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
            OK(simcuda_upload(address, content + (size_t)x * EXTENT, EXTENT));
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

void drop_private(void) {
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

void end_job(void) {
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

void fetch(uint32_t weight) {
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
        OK(simcuda_upload(address, content + (size_t)x * EXTENT, EXTENT));
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

static bool gate_stops(uint64_t *arrived, uint64_t *permit) {
    (void)arrived;
    (void)permit;
    return false;
}

static const struct tl_graph_gates graph_questions = {.arena = gate_arena,
                                                      .words = gate_words,
                                                      .stops = gate_stops,
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

void ring_open(uint32_t ring_slots) {
    slots = ring_slots;
    access_open();
    access_device();
    make_arena();
    OK(cuMemHostAlloc((void **)&words, 4096, CU_MEMHOSTALLOC_PORTABLE));
    memset(words, 0, 4096);
    OK(cuMemAlloc(&steps, 4096));
    OK(cuMemsetD8(steps, 0, 4096));
    OK(cuStreamSynchronize(NULL));
    OK(cuStreamCreate(&agent, CU_STREAM_NON_BLOCKING));
    gemm = access_function(NULL, "sim_gemm_like");
    OK(cuFuncLoad(gemm)); /* which waits for all streams, also for those that wait for a flag */
    lay_out();
    ring_gated(true);
}

void ring_gated(bool gated) {
    gate_own(gated ? &fake_gate : NULL);
}

void ring_close(void) {
    end_job();
    ring_gated(false);
    free(content);
}

void **parameters_of(struct parameters *p, uint32_t weight, uint32_t in, uint32_t out) {
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

CUDA_KERNEL_NODE_PARAMS node_of(struct parameters *p, uint32_t weight, uint32_t in, uint32_t out) {
    return kernel_node(gemm, 32, parameters_of(p, weight, in, out));
}

void launch(uint32_t weight, uint32_t in, uint32_t out, CUstream stream) {
    struct parameters p;
    OK(cuLaunchKernel(gemm, 1, 1, 1, 32, 1, 1, 0, stream, parameters_of(&p, weight, in, out),
                      NULL));
}

static uint64_t hash_of(uint64_t seed, uint32_t weight) {
    return simcuda_hash(seed, content + (weights[weight].address - base), weights[weight].bytes);
}

uint64_t step(uint32_t index) {
    uint64_t value = 0;
    OK(cuMemcpyDtoH(&value, steps + 8 * (CUdeviceptr)index, 8));
    return value;
}

uint64_t expected(const uint32_t *order, uint32_t count) {
    uint64_t value = 0;
    for (uint32_t i = 0; i < count; i++) {
        value = hash_of(value, order[i]);
    }
    return value;
}

CUgraph capture(const uint32_t *order, uint32_t count, CUstream stream) {
    CUgraph graph;
    OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    for (uint32_t i = 0; i < count; i++) {
        launch(order[i], i, i + 1, stream);
    }
    OK(cuStreamEndCapture(stream, &graph));
    return graph;
}

const uint32_t in_order[WEIGHTS] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13};

size_t nodes_in(CUgraph graph) {
    size_t count = 0;
    OK(cuGraphGetNodes(graph, NULL, &count));
    return count;
}

uint64_t gates_added(void) {
    return simcuda_calls("cuGraphAddBatchMemOpNode");
}

void run_graph(CUgraphExec exec, CUstream stream) {
    OK(cuMemsetD8Async(steps + 8, 0, 4088, stream));
    OK(cuGraphLaunch(exec, stream));
    OK(cuStreamSynchronize(stream));
}
