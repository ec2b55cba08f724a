/* The driver, reached in one of the ways in which programs reach it.
 *
 * A test says D(cuMemAlloc)(...). The way is the environment's ACCESS: "dlsym" looks every symbol
 * up in libcuda.so.1; "proc_address" and "proc_address_v1" look up cuGetProcAddress alone, ask it
 * for itself, and ask the answer for the rest, as a static CUDA runtime does; "linked" is for
 * programs that are linked against the driver. ACCESS_PER_THREAD asks for per-thread default
 * streams.
 */
#pragma once

#include <cuda.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tierline/interposer.h"

#define ACCESS_FUNCTIONS(X)                                                                        \
    X(cuInit)                                                                                      \
    X(cuDeviceGet)                                                                                 \
    X(cuDeviceTotalMem)                                                                            \
    X(cuDevicePrimaryCtxRetain)                                                                    \
    X(cuDevicePrimaryCtxRelease)                                                                   \
    X(cuCtxSetCurrent)                                                                             \
    X(cuCtxEnablePeerAccess)                                                                       \
    X(cuMemGetAddressRange)                                                                        \
    X(cuPointerGetAttribute)                                                                       \
    X(cuPointerGetAttributes)                                                                      \
    X(cuMemAlloc)                                                                                  \
    X(cuMemAllocPitch)                                                                             \
    X(cuMemFree)                                                                                   \
    X(cuMemAllocAsync)                                                                             \
    X(cuMemFreeAsync)                                                                              \
    X(cuMemAllocManaged)                                                                           \
    X(cuMemHostAlloc)                                                                              \
    X(cuMemFreeHost)                                                                               \
    X(cuMemHostRegister)                                                                           \
    X(cuMemHostUnregister)                                                                         \
    X(cuMemGetInfo)                                                                                \
    X(cuMemCreate)                                                                                 \
    X(cuMemRelease)                                                                                \
    X(cuMemRetainAllocationHandle)                                                                 \
    X(cuMemAddressReserve)                                                                         \
    X(cuMemAddressFree)                                                                            \
    X(cuMemMap)                                                                                    \
    X(cuMemUnmap)                                                                                  \
    X(cuMemSetAccess)                                                                              \
    X(cuMemExportToShareableHandle)                                                                \
    X(cuMemImportFromShareableHandle)                                                              \
    X(cuIpcGetMemHandle)                                                                           \
    X(cuMemcpyHtoD)                                                                                \
    X(cuMemcpyDtoH)                                                                                \
    X(cuMemcpyDtoDAsync)                                                                           \
    X(cuMemcpy2D)                                                                                  \
    X(cuMemcpy2DAsync)                                                                             \
    X(cuMemcpy3DAsync)                                                                             \
    X(cuMemsetD8)                                                                                  \
    X(cuModuleLoadData)                                                                            \
    X(cuModuleUnload)                                                                              \
    X(cuModuleGetFunction)                                                                         \
    X(cuLaunchKernel)                                                                              \
    X(cuLaunchKernelEx)                                                                            \
    X(cuLaunchCooperativeKernel)                                                                   \
    X(cuStreamCreate)                                                                              \
    X(cuStreamDestroy)                                                                             \
    X(cuStreamSynchronize)                                                                         \
    X(cuStreamBeginCapture)                                                                        \
    X(cuStreamEndCapture)                                                                          \
    X(cuGraphCreate)                                                                               \
    X(cuGraphDestroy)                                                                              \
    X(cuGraphAddKernelNode)                                                                        \
    X(cuGraphAddChildGraphNode)                                                                    \
    X(cuGraphAddDependencies)                                                                      \
    X(cuGraphInstantiate)                                                                          \
    X(cuGraphInstantiateWithParams)                                                                \
    X(cuGraphExecKernelNodeSetParams)                                                              \
    X(cuGraphExecUpdate)                                                                           \
    X(cuGraphExecDestroy)                                                                          \
    X(cuGraphLaunch)

/* The interposer's own functions, NULL when it is not preloaded. */
#define ACCESS_INTERPOSER(X)                                                                       \
    X(tierline_interposer_held)                                                                    \
    X(tierline_interposer_unswappable_bytes)                                                       \
    X(tierline_interposer_device_bytes)                                                            \
    X(tierline_interposer_active)                                                                  \
    X(tierline_interposer_on_change)                                                               \
    X(tierline_observer_watch)                                                                     \
    X(tierline_observer_restart)                                                                   \
    X(tierline_stack_clear)                                                                        \
    X(tierline_observer_order)                                                                     \
    X(tierline_observer_reads)                                                                     \
    X(tierline_observer_totals)                                                                    \
    X(tierline_graphs_name)                                                                        \
    X(tierline_memory_names)                                                                       \
    X(tierline_capturing)                                                                          \
    X(tierline_graphs_follow)                                                                      \
    X(tierline_observer_time)                                                                      \
    X(tierline_observer_time_graphs)                                                               \
    X(tierline_observer_times)                                                                     \
    X(tierline_gate_set)

#define ACCESS_MEMBER(name) __typeof__(&name) p_##name;
struct access {
    ACCESS_FUNCTIONS(ACCESS_MEMBER)
    ACCESS_INTERPOSER(ACCESS_MEMBER)
};
extern struct access access_table;
#define D(name) (access_table.p_##name)

/* Ends the program with the place and the reason. */
_Noreturn void access_fail(const char *file, int line, const char *text, int seen, int wanted);

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            access_fail(__FILE__, __LINE__, #condition, 0, 1);                                     \
        }                                                                                          \
    } while (0)
#define EQUAL(one, other)                                                                          \
    do {                                                                                           \
        long long seen_ = (long long)(one);                                                        \
        long long wanted_ = (long long)(other);                                                    \
        if (seen_ != wanted_) {                                                                    \
            access_fail(__FILE__, __LINE__, #one, (int)seen_, (int)wanted_);                       \
        }                                                                                          \
    } while (0)
#define OK(call) EQUAL(call, CUDA_SUCCESS)
#define FAILS(call, error) EQUAL(call, error)

/* Fills the table. */
void access_open(void);
/* cuInit and device 0's primary context, current. */
CUcontext access_device(void);
CUfunction access_function(CUmodule *module, const char *name);
tierline_held access_held(void);

struct scenario {
    const char *name;
    void (*run)(void);
};

/* What main does whose only argument is a scenario's name: opens, runs, and returns the exit
 * status. */
int access_run(int argc, char **argv, const struct scenario *scenarios, size_t count);
