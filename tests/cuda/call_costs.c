/* See call_costs.h. */
#include "call_costs.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "simcuda.h"

enum { ROUNDS = 15, CALLS = 4000, ALLOCATIONS = 400, KNOWN = 400, STREAMS = 4, NODES = 300 };

static CUfunction plain, wide;
static CUstream streams[STREAMS];
static CUgraphExec graph;
static CUdeviceptr activations[KNOWN];
static const CUdeviceptr *weights;
static uint32_t weight_count;

static void answers(CUresult result, CUresult expected) {
    if (result != expected) {
        fprintf(stderr, "a call answered %d instead of %d\n", (int)result, (int)expected);
        exit(1);
    }
}

uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000U + (uint64_t)now.tv_nsec;
}

static void launch(CUfunction function, CUstream stream, void **parameters) {
    answers(cuLaunchKernel(function, 0, 1, 1, 1, 1, 1, 0, stream, parameters, NULL),
            CUDA_ERROR_INVALID_VALUE);
}

static void launch_naming(CUdeviceptr address, uint32_t i) {
    uint64_t words[5] = {address, 4096, activations[i % KNOWN], activations[(i + 1) % KNOWN], 0};
    void *parameters[5] = {&words[0], &words[1], &words[2], &words[3], &words[4]};
    launch(plain, streams[0], parameters);
}

static void launch_plain(uint32_t i) {
    launch_naming(activations[(i + 2) % KNOWN], i);
}

static void launch_weight(uint32_t i) {
    launch_naming(weights[i % weight_count], i);
}

/* As a library's convolution: a structure of strides and some addresses, then more addresses. */
static void launch_wide_on(uint32_t i, CUstream stream) {
    struct simcuda_wide by_value;
    for (uint32_t w = 0; w < 64; w++) {
        by_value.words[w] = (uint64_t)(w + i) << 32 | w;
    }
    by_value.words[0] = activations[i % KNOWN];
    by_value.words[8] = weights[i % weight_count];
    by_value.words[16] = activations[(i + 7) % KNOWN];
    uint64_t words[8];
    void *parameters[9] = {&by_value};
    for (uint32_t w = 0; w < 8; w++) {
        words[w] = activations[(i + w) % KNOWN];
        parameters[w + 1] = &words[w];
    }
    words[3] = weights[(i + 1) % weight_count];
    launch(wide, stream, parameters);
}

static void launch_wide(uint32_t i) {
    launch_wide_on(i, streams[0]);
}

static void launch_in_turn(uint32_t i) {
    launch_wide_on(i, streams[i % STREAMS]);
}

/* A graph of kernels that each name a weight, launched into what is no stream. */
static void launch_graph(uint32_t i) {
    (void)i;
    answers(cuGraphLaunch(graph, (CUstream)&graph), CUDA_ERROR_INVALID_HANDLE);
}

static void fill(uint32_t i) {
    answers(cuMemsetD8Async(i, 0, 1, streams[0]), CUDA_ERROR_INVALID_VALUE);
}

static void copy(uint32_t i) {
    answers(cuMemcpyDtoDAsync(i, activations[i % KNOWN], 1, streams[0]), CUDA_ERROR_INVALID_VALUE);
}

static void allocate(uint32_t i) {
    CUdeviceptr at;
    answers(cuMemAlloc(&at, i % 2 == 0 ? 4096 : 1 << 20), CUDA_SUCCESS);
    answers(cuMemFree(at), CUDA_SUCCESS);
}

static int by_size(const void *one, const void *other) {
    double a = *(const double *)one;
    double b = *(const double *)other;
    return (a > b) - (a < b);
}

void print_costs(const char *call, double *samples_ns, uint32_t count) {
    qsort(samples_ns, count, sizeof *samples_ns, by_size);
    printf("{\"call\": \"%s\", \"best_ns\": %.1f, \"median_ns\": %.1f}\n", call, samples_ns[0],
           samples_ns[count / 2]);
}

static void prepare(void) {
    CUmodule module;
    answers(cuModuleLoadData(&module, SIMCUDA_IMAGE), CUDA_SUCCESS);
    answers(cuModuleGetFunction(&plain, module, "sim_gemm_like"), CUDA_SUCCESS);
    answers(cuModuleGetFunction(&wide, module, "sim_wide"), CUDA_SUCCESS);
    for (uint32_t i = 0; i < STREAMS; i++) {
        answers(cuStreamCreate(&streams[i], CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    }
    for (uint32_t i = 0; i < KNOWN; i++) {
        answers(cuMemAlloc(&activations[i], 4096), CUDA_SUCCESS);
    }
}

static void prepare_graph(void) {
    CUgraph described;
    CUgraphNode last = NULL;
    answers(cuGraphCreate(&described, 0), CUDA_SUCCESS);
    for (uint32_t n = 0; n < NODES; n++) {
        uint64_t words[5] = {weights[n % weight_count], 4096, activations[0], activations[1], 0};
        void *parameters[5] = {&words[0], &words[1], &words[2], &words[3], &words[4]};
        CUDA_KERNEL_NODE_PARAMS kernel = {.func = plain,
                                          .gridDimX = 1,
                                          .gridDimY = 1,
                                          .gridDimZ = 1,
                                          .blockDimX = 1,
                                          .blockDimY = 1,
                                          .blockDimZ = 1,
                                          .kernelParams = parameters};
        CUgraphNode node;
        answers(cuGraphAddKernelNode(&node, described, &last, n > 0, &kernel), CUDA_SUCCESS);
        last = node;
    }
    answers(cuGraphInstantiate(&graph, described, 0), CUDA_SUCCESS);
}

void time_calls(const CUdeviceptr *named, uint32_t count, void (*begin)(void), void (*end)(void)) {
    static const struct {
        const char *name;
        void (*call)(uint32_t i);
        uint32_t count;
    } kinds[] = {
        {"launch", launch_plain, CALLS},
        {"launch, a weight", launch_weight, CALLS},
        {"launch, 72 words, 2 weights", launch_wide, CALLS},
        {"  on 4 streams in turn", launch_in_turn, CALLS},
        {"graph of 300 kernels", launch_graph, CALLS},
        {"memset", fill, CALLS},
        {"copy", copy, CALLS},
        {"allocation and free", allocate, ALLOCATIONS},
    };
    prepare();
    weights = named != NULL ? named : activations;
    weight_count = named != NULL ? count : KNOWN;
    prepare_graph();
    for (size_t kind = 0; kind < sizeof kinds / sizeof *kinds; kind++) {
        double rounds_ns[ROUNDS];
        for (uint32_t round = 0; round < ROUNDS; round++) {
            begin();
            uint64_t from_ns = now_ns();
            for (uint32_t i = 0; i < kinds[kind].count; i++) {
                kinds[kind].call(i);
            }
            rounds_ns[round] = (double)(now_ns() - from_ns) / kinds[kind].count;
            end();
        }
        print_costs(kinds[kind].name, rounds_ns, ROUNDS);
    }
}
