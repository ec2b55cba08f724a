/* Built-in kernels. See builtins.h.
 *
 * A kernel touches memory only after asking whether its device may; a refusal is an illegal
 * address, which ends the context. Time is spent on the compute engine in slices, so kernels of
 * several processes alternate. Kernels that read weights read them piece by piece over their whole
 * duration, so that a weight which is overwritten too early changes the result.
 */
#include "builtins.h"

#include <string.h>

#include "context.h"
#include "ranges.h"
#include "simcuda.h"

enum { PIECE_BYTES = 256 << 10, PHASES = 4 };

static void *pointer(uint64_t address) {
    return (void *)(uintptr_t)address;
}

static uint64_t word_at(const unsigned char *parameters, size_t offset) {
    uint64_t word;
    memcpy(&word, parameters + offset, sizeof word);
    return word;
}

static void compute(CUcontext ctx, uint64_t duration_ns) {
    uint64_t left_ns = machine_compute_ns(ctx->device, duration_ns);
    uint64_t over_at = 0;
    while (left_ns > 0 && !context_is_over(ctx)) {
        uint64_t slice_ns = machine_config()->timeslice_ns;
        slice_ns = left_ns < slice_ns ? left_ns : slice_ns;
        over_at = machine_engine_take(ctx->device, ENGINE_COMPUTE, slice_ns, over_at);
        machine_sleep_until(over_at);
        left_ns -= slice_ns;
    }
}

static CUresult load(CUcontext ctx, uint64_t address, uint64_t *value) {
    ranges_hold();
    bool allowed = address % 8 == 0 && ranges_allow(address, 8, ctx->device, false);
    if (allowed) {
        memcpy(value, pointer(address), 8);
    }
    ranges_let_go();
    return allowed ? CUDA_SUCCESS : CUDA_ERROR_ILLEGAL_ADDRESS;
}

static CUresult store(CUcontext ctx, uint64_t address, uint64_t value) {
    ranges_hold();
    bool allowed = address % 8 == 0 && ranges_allow(address, 8, ctx->device, true);
    if (allowed) {
        memcpy(pointer(address), &value, 8);
    }
    ranges_let_go();
    return allowed ? CUDA_SUCCESS : CUDA_ERROR_ILLEGAL_ADDRESS;
}

/* Goes on with a hash over device memory, in pieces. */
static CUresult hash_on(CUcontext ctx, uint64_t address, uint64_t bytes, uint64_t *hash) {
    for (uint64_t done = 0; done < bytes && !context_is_over(ctx);) {
        uint64_t piece = bytes - done < PIECE_BYTES ? bytes - done : PIECE_BYTES;
        ranges_hold();
        bool allowed = ranges_allow(address + done, piece, ctx->device, false);
        if (allowed) {
            *hash = simcuda_hash(*hash, pointer(address + done), piece);
        }
        ranges_let_go();
        if (!allowed) {
            return CUDA_ERROR_ILLEGAL_ADDRESS;
        }
        done += piece;
    }
    return CUDA_SUCCESS;
}

/* The same spread over a duration. */
static CUresult hash_slowly(CUcontext ctx, uint64_t address, uint64_t bytes, uint64_t duration_ns,
                            uint64_t *hash) {
    uint64_t quarter = bytes / PHASES / 8 * 8;
    CUresult result = CUDA_SUCCESS;
    for (int phase = 0; phase < PHASES && result == CUDA_SUCCESS; phase++) {
        compute(ctx, duration_ns / PHASES);
        uint64_t size = phase + 1 < PHASES ? quarter : bytes - (PHASES - 1) * quarter;
        result = hash_on(ctx, address + (uint64_t)phase * quarter, size, hash);
    }
    return result;
}

static CUresult run_spin(CUcontext ctx, const unsigned char *parameters) {
    compute(ctx, word_at(parameters, 0));
    return CUDA_SUCCESS;
}

static CUresult run_axpy(CUcontext ctx, const unsigned char *parameters) {
    uint64_t y = word_at(parameters, 0);
    uint64_t x = word_at(parameters, 8);
    float a;
    uint32_t count;
    memcpy(&a, parameters + 16, sizeof a);
    memcpy(&count, parameters + 20, sizeof count);
    uint64_t bytes = (uint64_t)count * sizeof(float);
    ranges_hold();
    bool allowed = (x | y) % sizeof(float) == 0 && ranges_allow(x, bytes, ctx->device, false) &&
                   ranges_allow(y, bytes, ctx->device, true);
    if (allowed) {
        for (uint32_t i = 0; i < count; i++) {
            ((float *)pointer(y))[i] += a * ((const float *)pointer(x))[i];
        }
    }
    ranges_let_go();
    return allowed ? CUDA_SUCCESS : CUDA_ERROR_ILLEGAL_ADDRESS;
}

static CUresult run_fill(CUcontext ctx, const unsigned char *parameters) {
    uint64_t out = word_at(parameters, 0);
    uint64_t value = word_at(parameters, 8);
    uint64_t count = word_at(parameters, 16);
    ranges_hold();
    bool allowed =
        out % 8 == 0 && count < UINT64_MAX / 8 && ranges_allow(out, count * 8, ctx->device, true);
    if (allowed) {
        for (uint64_t i = 0; i < count; i++) {
            ((uint64_t *)pointer(out))[i] = value;
        }
    }
    ranges_let_go();
    return allowed ? CUDA_SUCCESS : CUDA_ERROR_ILLEGAL_ADDRESS;
}

static CUresult run_hash(CUcontext ctx, const unsigned char *parameters) {
    uint64_t hash = 0;
    CUresult result = hash_on(ctx, word_at(parameters, 0), word_at(parameters, 8), &hash);
    return result == CUDA_SUCCESS ? store(ctx, word_at(parameters, 16), hash) : result;
}

static CUresult run_gemm_like(CUcontext ctx, const unsigned char *parameters) {
    uint64_t hash;
    CUresult result = load(ctx, word_at(parameters, 16), &hash);
    if (result == CUDA_SUCCESS) {
        result = hash_slowly(ctx, word_at(parameters, 0), word_at(parameters, 8),
                             word_at(parameters, 32), &hash);
    }
    return result == CUDA_SUCCESS ? store(ctx, word_at(parameters, 24), hash) : result;
}

/* As sim_gemm_like, after a gap. */
static CUresult run_gemm_apart(CUcontext ctx, const unsigned char *parameters) {
    return run_gemm_like(ctx, parameters + 16);
}

static CUresult run_gemm_struct(CUcontext ctx, const unsigned char *parameters) {
    struct simcuda_gemm gemm;
    memcpy(&gemm, parameters, sizeof gemm);
    uint64_t hash;
    CUresult result = load(ctx, gemm.in, &hash);
    if (result == CUDA_SUCCESS) {
        result = hash_slowly(ctx, gemm.a, gemm.a_bytes, gemm.duration_ns / 2, &hash);
    }
    if (result == CUDA_SUCCESS) {
        result = hash_slowly(ctx, gemm.b, gemm.b_bytes, gemm.duration_ns / 2, &hash);
    }
    return result == CUDA_SUCCESS ? store(ctx, gemm.out, hash) : result;
}

static CUresult run_gemm_array(CUcontext ctx, const unsigned char *parameters) {
    uint64_t addresses = word_at(parameters, 0);
    uint64_t count = word_at(parameters, 8);
    uint64_t hash;
    CUresult result = load(ctx, word_at(parameters, 24), &hash);
    for (uint64_t i = 0; i < count && result == CUDA_SUCCESS; i++) {
        uint64_t array = 0;
        result = load(ctx, addresses + i * 8, &array);
        if (result == CUDA_SUCCESS) {
            result = hash_on(ctx, array, word_at(parameters, 16), &hash);
        }
    }
    return result == CUDA_SUCCESS ? store(ctx, word_at(parameters, 32), hash) : result;
}

/* As that, by distances from an address: base, their array, count, bytes, in, out. */
static CUresult run_gemm_offsets(CUcontext ctx, const unsigned char *parameters) {
    uint64_t count = word_at(parameters, 16);
    uint64_t hash;
    CUresult result = load(ctx, word_at(parameters, 32), &hash);
    for (uint64_t i = 0; i < count && result == CUDA_SUCCESS; i++) {
        uint64_t distance = 0;
        result = load(ctx, word_at(parameters, 8) + i * 8, &distance);
        if (result == CUDA_SUCCESS) {
            result =
                hash_on(ctx, word_at(parameters, 0) + distance, word_at(parameters, 24), &hash);
        }
    }
    return result == CUDA_SUCCESS ? store(ctx, word_at(parameters, 40), hash) : result;
}

static CUresult run_trap(CUcontext ctx, const unsigned char *parameters) {
    (void)ctx;
    (void)parameters;
    return CUDA_ERROR_LAUNCH_FAILED;
}

static CUresult run_wide(CUcontext ctx, const unsigned char *parameters) {
    (void)ctx;
    (void)parameters;
    return CUDA_SUCCESS;
}

static unsigned spans_none(const unsigned char *parameters, struct span *spans) {
    (void)parameters;
    (void)spans;
    return 0;
}

static unsigned spans_axpy(const unsigned char *parameters, struct span *spans) {
    uint32_t count;
    memcpy(&count, parameters + 20, sizeof count);
    uint64_t bytes = (uint64_t)count * sizeof(float);
    spans[0] = (struct span){word_at(parameters, 0), bytes};
    spans[1] = (struct span){word_at(parameters, 8), bytes};
    return 2;
}

static unsigned spans_fill(const unsigned char *parameters, struct span *spans) {
    spans[0] = (struct span){word_at(parameters, 0), word_at(parameters, 16) * 8};
    return 1;
}

static unsigned spans_hash(const unsigned char *parameters, struct span *spans) {
    spans[0] = (struct span){word_at(parameters, 0), word_at(parameters, 8)};
    spans[1] = (struct span){word_at(parameters, 16), 8};
    return 2;
}

static unsigned spans_gemm_like(const unsigned char *parameters, struct span *spans) {
    spans[0] = (struct span){word_at(parameters, 0), word_at(parameters, 8)};
    spans[1] = (struct span){word_at(parameters, 16), 8};
    spans[2] = (struct span){word_at(parameters, 24), 8};
    return 3;
}

static unsigned spans_gemm_apart(const unsigned char *parameters, struct span *spans) {
    return spans_gemm_like(parameters + 16, spans);
}

static unsigned spans_gemm_struct(const unsigned char *parameters, struct span *spans) {
    struct simcuda_gemm gemm;
    memcpy(&gemm, parameters, sizeof gemm);
    spans[0] = (struct span){gemm.a, gemm.a_bytes};
    spans[1] = (struct span){gemm.b, gemm.b_bytes};
    spans[2] = (struct span){gemm.in, 8};
    spans[3] = (struct span){gemm.out, 8};
    return 4;
}

/* What the array names is not known before it is read. */
static unsigned spans_gemm_array(const unsigned char *parameters, struct span *spans) {
    spans[0] = (struct span){word_at(parameters, 0), word_at(parameters, 8) * 8};
    spans[1] = (struct span){word_at(parameters, 24), 8};
    spans[2] = (struct span){word_at(parameters, 32), 8};
    return 3;
}

static unsigned spans_gemm_offsets(const unsigned char *parameters, struct span *spans) {
    spans[0] = (struct span){word_at(parameters, 8), word_at(parameters, 16) * 8};
    spans[1] = (struct span){word_at(parameters, 32), 8};
    spans[2] = (struct span){word_at(parameters, 40), 8};
    return 3;
}

const struct builtin builtins[BUILTIN_COUNT] = {
    {"sim_spin", 8, 1, {{0, 8}}, run_spin, spans_none},
    {"sim_axpy", 24, 4, {{0, 8}, {8, 8}, {16, 4}, {20, 4}}, run_axpy, spans_axpy},
    {"sim_fill", 24, 3, {{0, 8}, {8, 8}, {16, 8}}, run_fill, spans_fill},
    {"sim_hash", 24, 3, {{0, 8}, {8, 8}, {16, 8}}, run_hash, spans_hash},
    {"sim_gemm_like",
     40,
     5,
     {{0, 8}, {8, 8}, {16, 8}, {24, 8}, {32, 8}},
     run_gemm_like,
     spans_gemm_like},
    {"sim_gemm_apart",
     56,
     6,
     {{0, 4}, {16, 8}, {24, 8}, {32, 8}, {40, 8}, {48, 8}},
     run_gemm_apart,
     spans_gemm_apart},
    {"sim_gemm_struct",
     sizeof(struct simcuda_gemm),
     1,
     {{0, sizeof(struct simcuda_gemm)}},
     run_gemm_struct,
     spans_gemm_struct},
    {"sim_gemm_array",
     40,
     5,
     {{0, 8}, {8, 8}, {16, 8}, {24, 8}, {32, 8}},
     run_gemm_array,
     spans_gemm_array},
    {"sim_gemm_offsets",
     48,
     6,
     {{0, 8}, {8, 8}, {16, 8}, {24, 8}, {32, 8}, {40, 8}},
     run_gemm_offsets,
     spans_gemm_offsets},
    {"sim_wide",
     sizeof(struct simcuda_wide) + 64,
     9,
     {{0, 512}, {512, 8}, {520, 8}, {528, 8}, {536, 8}, {544, 8}, {552, 8}, {560, 8}, {568, 8}},
     run_wide,
     spans_none},
    {"sim_trap", 0, 0, {{0, 0}}, run_trap, spans_none},
};

const struct builtin *builtin_find(const char *name) {
    for (size_t i = 0; i < BUILTIN_COUNT; i++) {
        if (name != NULL && strcmp(builtins[i].name, name) == 0) {
            return &builtins[i];
        }
    }
    return NULL;
}
