/* See gpu_kit.h. */
#include "gpu_kit.h"

#include <string.h>
#include <time.h>

#include "simcuda.h"

enum { MOST_RESULTS = 256, ALIGNMENT = 256 };

static uint64_t next(uint64_t *state) {
    *state += 0x9e3779b97f4a7c15U;
    uint64_t mixed = (*state ^ (*state >> 30)) * 0xbf58476d1ce4e5b9U;
    mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111ebU;
    return mixed ^ (mixed >> 31);
}

CUcontext use_gpu(void) {
    CUcontext context;
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuCtxSetCurrent(context));
    return context;
}

static void make_content(struct task *task, uint32_t extents, uint64_t seed) {
    task->weight_bytes = (extents - 1) * task->extent_bytes + 4096;
    task->content = malloc(task->weight_bytes);
    HOLDS(task->content != NULL);
    for (uint64_t i = 0; i < task->weight_bytes; i += 8) {
        uint64_t word = next(&seed);
        memcpy(task->content + i, &word, 8);
    }
    /* From a few kilobytes to an extent and a half, so that some lie across a boundary. */
    for (uint64_t at = 0; at < task->weight_bytes;) {
        HOLDS(task->count < MOST_WEIGHTS);
        uint64_t bytes =
            (4096 + next(&seed) % (task->extent_bytes * 3 / 2)) / ALIGNMENT * ALIGNMENT;
        bytes = bytes < task->weight_bytes - at ? bytes : task->weight_bytes - at;
        task->weights[task->count++] = (struct weight){.offset = at, .bytes = bytes};
        at += bytes;
    }
}

static void make_arena(struct task *task) {
    tierline_layer layers[MOST_WEIGHTS];
    tierline_weight_range ranges[MOST_WEIGHTS];
    uint32_t widest = 0;
    for (uint32_t w = 0; w < task->count; w++) {
        const struct weight *weight = &task->weights[w];
        ranges[w] = (tierline_weight_range){.offset = weight->offset, .bytes = weight->bytes};
        layers[w] = (tierline_layer){
            .first_extent = (uint32_t)(weight->offset / task->extent_bytes),
            .last_extent = (uint32_t)((weight->offset + weight->bytes - 1) / task->extent_bytes)};
        uint32_t span = layers[w].last_extent - layers[w].first_extent + 1;
        widest = span > widest ? span : widest;
    }
    void *base = NULL;
    OK(tierline_reserve(task->client, task->arena, task->weight_bytes, 0, widest, &base));
    for (uint64_t at = 0, e = 0; at < task->weight_bytes; at += task->extent_bytes, e++) {
        uint64_t left = task->weight_bytes - at;
        OK(tierline_store(task->client, task->arena, (uint32_t)e, task->content + at,
                          left < task->extent_bytes ? left : task->extent_bytes));
    }
    OK(tierline_weights(task->client, task->arena, ranges, task->count));
    OK(tierline_seal(task->client, task->arena, layers, task->count, NULL));
    for (uint32_t w = 0; w < task->count; w++) {
        task->weights[w].address = (uint64_t)(uintptr_t)base + task->weights[w].offset;
    }
}

static void prepare(struct task *task, uint32_t extents, uint64_t seed) {
    tierline_terms terms;
    OK(tierline_get_terms(task->client, &terms));
    task->extent_bytes = terms.extent_bytes;
    HOLDS(strncmp(terms.device_uuid, "GPU-", 4) == 0);
    CUmodule module;
    OK(cuModuleLoadData(&module, SIMCUDA_IMAGE));
    OK(cuModuleGetFunction(&task->hash, module, "sim_gemm_like"));
    OK(cuModuleGetFunction(&task->pair, module, "sim_gemm_struct"));
    OK(cuModuleGetFunction(&task->spin, module, "sim_spin"));
    OK(cuMemHostAlloc((void **)&task->results, (MOST_RESULTS + 1) * sizeof(uint64_t),
                      CU_MEMHOSTALLOC_DEVICEMAP));
    memset(task->results, 0, (MOST_RESULTS + 1) * sizeof(uint64_t));
    make_content(task, extents, seed);
    make_arena(task);
}

void load(struct task *task, const char *socket, uint32_t arena, uint32_t extents, uint64_t seed) {
    *task = (struct task){.arena = arena};
    OK(tierline_connect_device(socket, "gpu_task", TIERLINE_DEVICE_CUDA, &task->client));
    prepare(task, extents, seed);
}

void load_another(struct task *task, const struct task *first, uint32_t arena, uint32_t extents,
                  uint64_t seed) {
    *task = (struct task){.arena = arena, .client = first->client};
    prepare(task, extents, seed);
}

/* The kernels begin with the word after the last result, which is 0. */
static uint64_t slot_address(const struct task *task, uint32_t slot) {
    return (uint64_t)(uintptr_t)(task->results + slot);
}

CUresult launch(struct task *task, uint32_t weight, uint32_t slot, CUstream stream,
                uint64_t duration_ns) {
    uint64_t in = slot_address(task, MOST_RESULTS);
    uint64_t out = slot_address(task, slot);
    void *parameters[] = {&task->weights[weight].address, &task->weights[weight].bytes, &in, &out,
                          &duration_ns};
    return cuLaunchKernel(task->hash, 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL);
}

CUresult launch_pair(struct task *task, uint32_t one, uint32_t other, uint32_t slot,
                     CUstream stream) {
    struct simcuda_gemm gemm = {.a = task->weights[one].address,
                                .a_bytes = task->weights[one].bytes,
                                .b = task->weights[other].address,
                                .b_bytes = task->weights[other].bytes,
                                .in = slot_address(task, MOST_RESULTS),
                                .out = slot_address(task, slot)};
    void *parameters[] = {&gemm};
    return cuLaunchKernel(task->pair, 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL);
}

uint64_t expected(const struct task *task, uint32_t weight) {
    return simcuda_hash(0, task->content + task->weights[weight].offset,
                        task->weights[weight].bytes);
}

void check(struct task *task, uint32_t from, uint32_t to, CUstream stream) {
    OK(cuStreamSynchronize(stream));
    for (uint32_t w = from; w < to; w++) {
        HOLDS(task->results[w] == expected(task, w));
    }
}

void clear(struct task *task) {
    memset(task->results, 0, (MOST_RESULTS + 1) * sizeof(uint64_t));
}

uint64_t begin(struct task *task) {
    uint64_t job = 0;
    OK(tierline_job_begin(task->client, task->arena, 0, 0, UINT64_MAX >> 2, &job));
    return job;
}

tierline_job_stats end(struct task *task, uint64_t job) {
    tierline_job_stats stats;
    OK(tierline_job_end(task->client, job, 0));
    OK(tierline_get_job_stats(task->client, &stats));
    return stats;
}

uint64_t jobs(struct task *task) {
    tierline_statistics statistics;
    OK(tierline_get_statistics(task->client, &statistics));
    return statistics.jobs;
}

int run_scenario(const char *name, const struct scenario *scenarios, size_t count,
                 struct task *task) {
    for (size_t i = 0; i < count; i++) {
        if (strcmp(scenarios[i].name, name) == 0) {
            scenarios[i].run();
            if (task->client != NULL) {
                tierline_close(task->client);
                free(task->content);
            }
            puts("held");
            return 0;
        }
    }
    fprintf(stderr, "there is no scenario '%s'\n", name);
    return 2;
}
