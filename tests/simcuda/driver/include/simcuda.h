/* What a test asks of the simulated driver in addition to CUDA's own calls.
 *
 * Put the build folder first on LD_LIBRARY_PATH and a program finds this libcuda.so.1, and a small
 * libnvidia-ml.so.1 (inventory and memory) of the same machine.
 *
 * Settings (environment, or `key = value` lines of the file that SIMCUDA_CONFIG names; an unknown
 * key or a value that differs from that of the machine already running makes cuInit fail with a
 * sentence):
 *
 *   SIMCUDA_STATE            folder of the simulated machine; processes with the same folder share
 * its devices. Default /dev/shm/simcuda-<uid>. Put it on a tmpfs: extents are files.
 *   SIMCUDA_DEVICES          number of devices, 1 to 8 (default 1)
 *   SIMCUDA_MEMORY           device memory, bytes; suffixes Ki, Mi, Gi (default 1Gi)
 *   SIMCUDA_GRANULARITY      unit of memory that is mapped, bytes: a power of two, 64Ki to 2Mi
 * (default)
 *   SIMCUDA_CONTEXT          device memory that a context costs, bytes (default 0)
 *   SIMCUDA_H2D, _D2H, _D2D, _PEER, _PAGEABLE
 *                            bandwidth, bytes per second; 0 (default) is as fast as memcpy
 *   SIMCUDA_COPY_OVERHEAD    nanoseconds that each copy occupies its engine besides its bytes
 * (default 0) SIMCUDA_TIMESLICE        nanoseconds that a kernel holds the compute engine at most
 * (default 2000000) SIMCUDA_COMPUTE          thousandths by which kernels' own durations are
 * multiplied (default 1000) SIMCUDA_NAME             device name (default "Simulated GPU")
 *
 * Faults (SIMCUDA_FAULTS, rules separated by ';', or lines of the file that SIMCUDA_FAULT_FILE
 * names, read again whenever it changes; '#' begins a comment):
 *
 *   call <function> <n>[+] <error>   the n-th call (with '+': and each later one) of the function
 * in this process answers the error, e.g. "call cuMemCreate 3 OUT_OF_MEMORY". The function is a
 * base name or one exact symbol; calls are counted from when the rule is first read.
 * ILLEGAL_ADDRESS and the other sticky errors kill the calling thread's context.
 *
 *   hold <function> <n>[+] <file>    the same calls wait while the file is there; its path begins
 * with '/' and has no blanks.
 *
 *   device <ordinal> lost|restored   every context of the device, in every process, answers
 * CUDA_ERROR_DEVICE_UNAVAILABLE; new ones can be made when restored.
 *
 *   device <ordinal> xid <code>      NVML reports this error of the device, once.
 *
 *   link <engine> <ordinal> <thousandths>   speed of h2d, d2h, d2d, peer or compute of a device,
 * for all processes.
 *
 * Kernels: an image that begins with the text of SIMCUDA_IMAGE, given to cuModuleLoadData or
 * cuLibraryLoadData, holds these (addresses are 8 bytes; durations in nanoseconds of the device's
 * one compute engine):
 *
 *   sim_spin(u64 duration)
 *   sim_axpy(float *y, const float *x, float a, u32 n)                    y += a x
 *   sim_fill(u64 *out, u64 value, u64 count)
 *   sim_hash(const void *data, u64 bytes, u64 *out)                       out = simcuda_hash(0,
 * data) sim_gemm_like(const void *weights, u64 bytes, const u64 *in, u64 *out, u64 duration) out =
 * simcuda_hash(*in, weights) sim_gemm_apart(u32, 8 bytes of nothing, then as sim_gemm_like)
 *   sim_gemm_struct(struct simcuda_gemm) out = hash(hash(*in, a), b)
 *   sim_gemm_array(const u64 *addresses, u64 count, u64 bytes, const u64 *in, u64 *out)
 *                                                                         hash over arrays found in
 * device memory
 *   sim_gemm_offsets(const void *base, const u64 *distances, then as sim_gemm_array from count on)
 *   sim_wide(struct simcuda_wide, u64 x 8)                                nothing
 *   sim_trap()                                                            CUDA_ERROR_LAUNCH_FAILED
 *
 * With SIMCUDA_CALLS_WAIT=1 the process's calls that map, allocate or page-lock memory, make
 * streams or load modules wait while one of its streams stands at a flag, as they may on a GPU.
 *
 * With SIMCUDA_LATE=<seed>, not 0, the process's work ends late, by times that follow from the
 * seed, up to when a call waits for it or asks: as late as the driver's documents allow
 * (lateness.h).
 *
 * Always: unmapping memory, changing access to it, freeing and unregistering host memory while work
 * that may touch it has not ended ends the process with a sentence and two stacks, that of the call
 * and that of the call which submitted the work.
 *
 * SIMCUDA_REPORT names a file to which each process appends, when it exits, one JSON line: calls by
 * symbol and which of them are not supported.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SIMCUDA_IMAGE "simcuda kernels"

/* The one parameter of sim_gemm_struct: addresses inside a structure, as template libraries pass
 * them. */
struct simcuda_gemm {
    uint32_t rows, columns; /* not used */
    uint64_t a, a_bytes, b, b_bytes;
    uint64_t in, out;
    uint64_t duration_ns;
};

/* The first parameter of sim_wide: as large as what libraries pass by value. */
struct simcuda_wide {
    uint64_t words[64];
};

/* What the kernels compute from bytes; also hash(hash(seed, x), y) == hash(seed, x then y) when x
 * is a multiple of 8 bytes. */
static inline uint64_t simcuda_hash(uint64_t seed, const void *data, size_t bytes) {
    const unsigned char *at = (const unsigned char *)data;
    uint64_t hash = seed;
    for (size_t done = 0; done < bytes; done += 8) {
        uint64_t word = 0;
        memcpy(&word, at + done, bytes - done < 8 ? bytes - done : 8);
        hash = (hash ^ word) * 0x9e3779b97f4a7c15U;
        hash ^= hash >> 29;
    }
    return hash;
}

/* Calls of an exported symbol ("cuMemcpyHtoDAsync_v2_ptsz") in this process so far; 0 for an
 * unknown name. */
uint64_t simcuda_calls(const char *symbol);

/* Calls that were answered CUDA_ERROR_NOT_SUPPORTED because the simulator lacks the function. */
uint64_t simcuda_unsupported_calls(void);

/* Bytes that engines of a device have moved, all processes together: 0 h2d, 1 d2h, 2 d2d, 3 peer
 * (sender). */
uint64_t simcuda_moved_bytes(int device, int engine);

#ifdef __cplusplus
}
#endif
