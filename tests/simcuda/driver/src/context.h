/* Contexts, the current one of each thread, and the error that ends a context.
 *
 * Invariant: a context's error is set once and never cleared; from then on every call in the
 * context answers it, its streams drop their work, and nothing in it waits any more. Other
 * contexts, also of the same process and device, go on. A lost device ends all its contexts,
 * whichever process they are in.
 */
#pragma once

#include <cuda.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "machine.h"

struct CUctx_st {
    int device;
    bool primary;
    unsigned flags;
    unsigned api_version;
    uint64_t id;
    uint64_t births;     /* the device's generation when the context was made */
    unsigned retained;   /* primary: cuDevicePrimaryCtxRetain minus Release */
    struct block memory; /* what the context itself costs */
    atomic_uint peers;   /* bit n: access to device n's contexts is enabled */
    atomic_int error;    /* CUresult; CUDA_SUCCESS while it lives */
    atomic_bool ending;
    CUstream legacy; /* the three below are guarded by the lock of streams.c */
    CUstream streams;
    unsigned workers;
};

/* True after a successful cuInit in this very process; false again in a forked child. */
bool driver_ready(void);
CUresult device_check(CUdevice device);

/* The calling thread's context, if it can be used. */
CUresult context_current(CUcontext *ctx);
/* The same for a context given by handle. */
CUresult context_check(CUcontext ctx);
/* What the next call in the context would answer. */
CUresult context_health(CUcontext ctx);
/* True when waiting in this context has no end any more. */
bool context_is_over(CUcontext ctx);
void context_fail(CUcontext ctx, CUresult error);
void context_kill_current(CUresult error);
/* A context of the device without any thread having it current: the primary one, or NULL. */
CUcontext context_primary(CUdevice device);
