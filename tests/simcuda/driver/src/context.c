/* Contexts. See context.h. */
#include "context.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "capture.h"
#include "entry.h"
#include "memory.h"
#include "modules.h"
#include "objects.h"
#include "streams.h"

enum { STACK_DEPTH = 32 };

static _Thread_local CUcontext stack[STACK_DEPTH];
static _Thread_local unsigned depth;

static pthread_mutex_t contexts_lock = PTHREAD_MUTEX_INITIALIZER;
static CUcontext primaries[MAX_DEVICES];
static unsigned primary_flags[MAX_DEVICES];
static uint64_t next_id = 1;

static CUresult context_make(CUcontext *made, CUdevice device, unsigned flags, bool primary) {
    if (machine_is_lost(device)) {
        return CUDA_ERROR_DEVICE_UNAVAILABLE;
    }
    CUcontext ctx = calloc(1, sizeof *ctx);
    if (ctx == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    ctx->device = device;
    ctx->primary = primary;
    ctx->flags = flags;
    ctx->api_version = 3020;
    ctx->births = machine_loss_generation(device);
    ctx->id = next_id++;
    ctx->memory.fd = -1;
    uint64_t cost = machine_config()->context_bytes;
    if (cost > 0 && !machine_block_create(device, cost, false, &ctx->memory)) {
        free(ctx);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (!object_add(ctx, OBJECT_CONTEXT) || stream_open(ctx, 0, 0, &ctx->legacy) != CUDA_SUCCESS) {
        object_remove(ctx, OBJECT_CONTEXT);
        machine_block_close(&ctx->memory);
        free(ctx);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *made = ctx;
    return CUDA_SUCCESS;
}

/* The handle is out of the table already: nobody finds the context any more. */
static void context_unmake(CUcontext ctx) {
    capture_context_ends(ctx);
    streams_end(ctx);
    modules_end(ctx);
    memory_end(ctx);
    machine_block_close(&ctx->memory);
    free(ctx);
}

bool context_is_over(CUcontext ctx) {
    return atomic_load(&ctx->ending) || context_health(ctx) != CUDA_SUCCESS;
}

CUresult context_health(CUcontext ctx) {
    if (atomic_load(&ctx->error) == CUDA_SUCCESS &&
        machine_loss_generation(ctx->device) != ctx->births) {
        context_fail(ctx, CUDA_ERROR_DEVICE_UNAVAILABLE);
    }
    return (CUresult)atomic_load(&ctx->error);
}

void context_fail(CUcontext ctx, CUresult error) {
    int healthy = CUDA_SUCCESS;
    if (atomic_compare_exchange_strong(&ctx->error, &healthy, (int)error)) {
        streams_wake();
    }
}

void context_kill_current(CUresult error) {
    if (depth > 0 && object_is(stack[depth - 1], OBJECT_CONTEXT)) {
        context_fail(stack[depth - 1], error);
    }
}

CUresult context_check(CUcontext ctx) {
    if (!driver_ready()) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    if (ctx == NULL || !object_is(ctx, OBJECT_CONTEXT)) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    return context_health(ctx);
}

CUresult context_current(CUcontext *ctx) {
    if (!driver_ready()) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    if (depth == 0 || stack[depth - 1] == NULL) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    *ctx = stack[depth - 1];
    if (!object_is(*ctx, OBJECT_CONTEXT)) {
        return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    }
    return context_health(*ctx);
}

CUcontext context_primary(CUdevice device) {
    pthread_mutex_lock(&contexts_lock);
    CUcontext ctx = primaries[device];
    pthread_mutex_unlock(&contexts_lock);
    return ctx;
}

CUresult IMPL(cuDevicePrimaryCtxRetain)(CUcontext *pctx, CUdevice dev) {
    CUresult result = device_check(dev);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (pctx == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    pthread_mutex_lock(&contexts_lock);
    if (primaries[dev] == NULL) {
        result = context_make(&primaries[dev], dev, primary_flags[dev], true);
    }
    if (result == CUDA_SUCCESS) {
        primaries[dev]->retained++;
        *pctx = primaries[dev];
    }
    pthread_mutex_unlock(&contexts_lock);
    return result;
}

static CUresult primary_drop(CUdevice dev, bool reset) {
    CUresult result = device_check(dev);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    CUcontext over = NULL;
    pthread_mutex_lock(&contexts_lock);
    CUcontext ctx = primaries[dev];
    if (ctx == NULL) {
        result = reset ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
    } else if (reset || --ctx->retained == 0) {
        object_remove(ctx, OBJECT_CONTEXT);
        primaries[dev] = NULL;
        over = ctx;
    }
    pthread_mutex_unlock(&contexts_lock);
    if (over != NULL) {
        context_unmake(over);
    }
    return result;
}

CUresult IMPL(cuDevicePrimaryCtxRelease_v2)(CUdevice dev) {
    return primary_drop(dev, false);
}

CUresult IMPL(cuDevicePrimaryCtxReset_v2)(CUdevice dev) {
    return primary_drop(dev, true);
}

CUresult IMPL(cuDevicePrimaryCtxRelease)(CUdevice dev) {
    return primary_drop(dev, false);
}

CUresult IMPL(cuDevicePrimaryCtxReset)(CUdevice dev) {
    return primary_drop(dev, true);
}

CUresult IMPL(cuDevicePrimaryCtxSetFlags_v2)(CUdevice dev, unsigned int flags) {
    CUresult result = device_check(dev);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    pthread_mutex_lock(&contexts_lock);
    primary_flags[dev] = flags;
    if (primaries[dev] != NULL) {
        primaries[dev]->flags = flags;
    }
    pthread_mutex_unlock(&contexts_lock);
    return CUDA_SUCCESS;
}

CUresult IMPL(cuDevicePrimaryCtxGetState)(CUdevice dev, unsigned int *flags, int *active) {
    CUresult result = device_check(dev);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (flags == NULL || active == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    pthread_mutex_lock(&contexts_lock);
    *flags = primary_flags[dev];
    *active = primaries[dev] != NULL;
    pthread_mutex_unlock(&contexts_lock);
    return CUDA_SUCCESS;
}

CUresult IMPL(cuCtxCreate_v4)(CUcontext *pctx, CUctxCreateParams *ctxCreateParams,
                              unsigned int flags, CUdevice dev) {
    CUresult result = device_check(dev);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (pctx == NULL || depth == STACK_DEPTH) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (ctxCreateParams != NULL &&
        (ctxCreateParams->numExecAffinityParams != 0 || ctxCreateParams->cigParams != NULL)) {
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    pthread_mutex_lock(&contexts_lock);
    result = context_make(pctx, dev, flags, false);
    pthread_mutex_unlock(&contexts_lock);
    if (result == CUDA_SUCCESS) {
        stack[depth++] = *pctx;
    }
    return result;
}

CUresult IMPL(cuCtxCreate_v2)(CUcontext *pctx, unsigned int flags, CUdevice dev) {
    return IMPL(cuCtxCreate_v4)(pctx, NULL, flags, dev);
}

CUresult IMPL(cuCtxCreate_v3)(CUcontext *pctx, CUexecAffinityParam *paramsArray, int numParams,
                              unsigned int flags, CUdevice dev) {
    if (numParams != 0 || paramsArray != NULL) {
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    return IMPL(cuCtxCreate_v4)(pctx, NULL, flags, dev);
}

CUresult IMPL(cuCtxDestroy_v2)(CUcontext ctx) {
    if (!driver_ready()) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    if (!object_is(ctx, OBJECT_CONTEXT) || ctx->primary || !object_remove(ctx, OBJECT_CONTEXT)) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    if (depth > 0 && stack[depth - 1] == ctx) {
        depth--;
    }
    context_unmake(ctx);
    return CUDA_SUCCESS;
}

CUresult IMPL(cuCtxDestroy)(CUcontext ctx) {
    return IMPL(cuCtxDestroy_v2)(ctx);
}

CUresult IMPL(cuCtxPushCurrent_v2)(CUcontext ctx) {
    if (!driver_ready()) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    if (ctx == NULL || !object_is(ctx, OBJECT_CONTEXT)) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    if (depth == STACK_DEPTH) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    stack[depth++] = ctx;
    return CUDA_SUCCESS;
}

CUresult IMPL(cuCtxPopCurrent_v2)(CUcontext *pctx) {
    if (!driver_ready()) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    if (depth == 0) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    depth--;
    if (pctx != NULL) {
        *pctx = stack[depth];
    }
    return CUDA_SUCCESS;
}

CUresult IMPL(cuCtxSetCurrent)(CUcontext ctx) {
    if (!driver_ready()) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    if (ctx == NULL) {
        depth -= depth > 0;
        return CUDA_SUCCESS;
    }
    if (ctx == NULL || !object_is(ctx, OBJECT_CONTEXT)) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    if (depth == 0) {
        depth = 1;
    }
    stack[depth - 1] = ctx;
    return CUDA_SUCCESS;
}

CUresult IMPL(cuCtxGetCurrent)(CUcontext *pctx) {
    if (!driver_ready()) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    if (pctx == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *pctx = depth == 0 ? NULL : stack[depth - 1];
    return CUDA_SUCCESS;
}

CUresult IMPL(cuCtxGetDevice_v2)(CUdevice *device, CUcontext ctx) {
    if (!driver_ready()) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    if (ctx == NULL && depth > 0) {
        ctx = stack[depth - 1];
    }
    if (ctx == NULL || !object_is(ctx, OBJECT_CONTEXT)) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    if (device == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *device = ctx->device;
    return CUDA_SUCCESS;
}

CUresult IMPL(cuCtxGetDevice)(CUdevice *device) {
    return IMPL(cuCtxGetDevice_v2)(device, NULL);
}

CUresult IMPL(cuCtxGetId)(CUcontext ctx, unsigned long long *ctxId) {
    if (!driver_ready()) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    if (ctx == NULL && depth > 0) {
        ctx = stack[depth - 1];
    }
    if (ctx == NULL || !object_is(ctx, OBJECT_CONTEXT)) {
        return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    }
    if (ctxId == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *ctxId = ctx->id;
    return CUDA_SUCCESS;
}

CUresult IMPL(cuCtxGetApiVersion)(CUcontext ctx, unsigned int *version) {
    CUresult result = ctx == NULL ? context_current(&ctx) : context_check(ctx);
    if (result == CUDA_SUCCESS) {
        *version = ctx->api_version;
    }
    return result;
}

CUresult IMPL(cuCtxGetFlags)(unsigned int *flags) {
    CUcontext ctx;
    CUresult result = context_current(&ctx);
    if (result == CUDA_SUCCESS) {
        *flags = ctx->flags;
    }
    return result;
}

CUresult IMPL(cuCtxSynchronize)(void) {
    CUcontext ctx;
    CUresult result = context_current(&ctx);
    if (result == CUDA_SUCCESS) {
        result = capture_unsafe_call();
    }
    return result == CUDA_SUCCESS ? streams_drain(ctx) : result;
}

CUresult IMPL(cuCtxSynchronize_v2)(CUcontext ctx) {
    CUresult result = ctx == NULL ? context_current(&ctx) : context_check(ctx);
    return result == CUDA_SUCCESS ? streams_drain(ctx) : result;
}

CUresult IMPL(cuCtxGetStreamPriorityRange)(int *leastPriority, int *greatestPriority) {
    CUcontext ctx;
    CUresult result = context_current(&ctx);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (leastPriority != NULL) {
        *leastPriority = 0;
    }
    if (greatestPriority != NULL) {
        *greatestPriority = -5;
    }
    return CUDA_SUCCESS;
}

/* Limits and cache preferences change nothing here; they answer as on a device that takes no
 * advice. */
CUresult IMPL(cuCtxSetLimit)(CUlimit limit, size_t value) {
    CUcontext ctx;
    (void)value;
    CUresult result = context_current(&ctx);
    return result != CUDA_SUCCESS ? result
           : limit < CU_LIMIT_MAX ? CUDA_SUCCESS
                                  : CUDA_ERROR_UNSUPPORTED_LIMIT;
}

CUresult IMPL(cuCtxGetLimit)(size_t *pvalue, CUlimit limit) {
    CUcontext ctx;
    CUresult result = context_current(&ctx);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (pvalue == NULL || limit >= CU_LIMIT_MAX) {
        return pvalue == NULL ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_UNSUPPORTED_LIMIT;
    }
    *pvalue = limit == CU_LIMIT_STACK_SIZE         ? 1024
              : limit == CU_LIMIT_MALLOC_HEAP_SIZE ? 8 << 20
                                                   : 0;
    return CUDA_SUCCESS;
}

CUresult IMPL(cuCtxSetCacheConfig)(CUfunc_cache config) {
    CUcontext ctx;
    (void)config;
    return context_current(&ctx);
}

CUresult IMPL(cuCtxGetCacheConfig)(CUfunc_cache *pconfig) {
    CUcontext ctx;
    CUresult result = context_current(&ctx);
    if (result == CUDA_SUCCESS) {
        *pconfig = CU_FUNC_CACHE_PREFER_NONE;
    }
    return result;
}

CUresult IMPL(cuCtxEnablePeerAccess)(CUcontext peerContext, unsigned int Flags) {
    CUcontext ctx;
    CUresult result = context_current(&ctx);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (Flags != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    result = context_check(peerContext);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (peerContext->device == ctx->device) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    unsigned before = atomic_fetch_or(&ctx->peers, 1U << peerContext->device);
    return before >> peerContext->device & 1 ? CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED
                                             : CUDA_SUCCESS;
}

CUresult IMPL(cuCtxDisablePeerAccess)(CUcontext peerContext) {
    CUcontext ctx;
    CUresult result = context_current(&ctx);
    if (result == CUDA_SUCCESS) {
        result = context_check(peerContext);
    }
    if (result != CUDA_SUCCESS) {
        return result;
    }
    unsigned before = atomic_fetch_and(&ctx->peers, ~(1U << peerContext->device));
    return before >> peerContext->device & 1 ? CUDA_SUCCESS : CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
}
