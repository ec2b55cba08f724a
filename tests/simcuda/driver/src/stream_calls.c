/* The calls that make streams, ask about them and end them; the queues are in streams.c. */
#include <stdlib.h>

#include "capture.h"
#include "entry.h"
#include "objects.h"
#include "standing.h"
#include "streams.h"

CUresult IMPL(cuStreamCreateWithPriority)(CUstream *phStream, unsigned int flags, int priority) {
    CUcontext ctx;
    CUresult result = context_current(&ctx);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    standing_wait();
    if (phStream == NULL || (flags & ~(unsigned)CU_STREAM_NON_BLOCKING) != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    int least = 0;
    int greatest = -5;
    priority = priority > least ? least : priority < greatest ? greatest : priority;
    CUstream stream;
    result = stream_open(ctx, flags, priority, &stream);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (!object_add(stream, OBJECT_STREAM)) {
        stream_close(stream);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *phStream = stream;
    return CUDA_SUCCESS;
}

CUresult IMPL(cuStreamCreate)(CUstream *phStream, unsigned int Flags) {
    return IMPL(cuStreamCreateWithPriority)(phStream, Flags, 0);
}

CUresult IMPL(cuStreamDestroy_v2)(CUstream hStream) {
    if (!driver_ready()) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    if (hStream == NULL || hStream == CU_STREAM_LEGACY || hStream == CU_STREAM_PER_THREAD ||
        !object_remove(hStream, OBJECT_STREAM)) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    capture_abandon(hStream);
    stream_close(hStream);
    return CUDA_SUCCESS;
}

CUresult IMPL(cuStreamDestroy)(CUstream hStream) {
    return IMPL(cuStreamDestroy_v2)(hStream);
}

CUresult IMPL(cuStreamSynchronize)(CUstream hStream) {
    CUstream stream;
    CUresult result = stream_resolve(hStream, &stream);
    if (result == CUDA_SUCCESS) {
        result = capture_forbids(stream);
    }
    if (result != CUDA_SUCCESS) {
        return result;
    }
    /* The legacy stream ends when everything before it in the blocking streams has. */
    if (stream == stream->ctx->legacy) {
        return stream_submit_and_wait(stream, calloc(1, sizeof(struct work)));
    }
    return stream_drain(stream);
}

CUresult IMPL(cuStreamQuery)(CUstream hStream) {
    CUstream stream;
    CUresult result = stream_resolve(hStream, &stream);
    if (result == CUDA_SUCCESS) {
        result = capture_forbids(stream);
    }
    if (result != CUDA_SUCCESS) {
        return result;
    }
    return stream_is_idle(stream) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult IMPL(cuStreamGetPriority)(CUstream hStream, int *priority) {
    CUstream stream;
    CUresult result = stream_resolve(hStream, &stream);
    if (result == CUDA_SUCCESS) {
        *priority = stream->priority;
    }
    return result;
}

CUresult IMPL(cuStreamGetFlags)(CUstream hStream, unsigned int *flags) {
    CUstream stream;
    CUresult result = stream_resolve(hStream, &stream);
    if (result == CUDA_SUCCESS) {
        *flags = stream->flags;
    }
    return result;
}

CUresult IMPL(cuStreamGetId)(CUstream hStream, unsigned long long *streamId) {
    CUstream stream;
    CUresult result = stream_resolve(hStream, &stream);
    if (result == CUDA_SUCCESS) {
        *streamId = stream->id;
    }
    return result;
}

CUresult IMPL(cuStreamGetCtx)(CUstream hStream, CUcontext *pctx) {
    CUstream stream;
    CUresult result = stream_resolve(hStream, &stream);
    if (result == CUDA_SUCCESS) {
        *pctx = stream->ctx;
    }
    return result;
}

CUresult IMPL(cuStreamGetDevice)(CUstream hStream, CUdevice *device) {
    CUstream stream;
    CUresult result = stream_resolve(hStream, &stream);
    if (result == CUDA_SUCCESS) {
        *device = stream->ctx->device;
    }
    return result;
}

CUresult IMPL(cuLaunchHostFunc)(CUstream hStream, CUhostFn fn, void *userData) {
    CUstream stream;
    CUresult result = stream_resolve(hStream, &stream);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (fn == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    struct work work = {.kind = WORK_HOST, .host = {fn, userData}};
    return stream_submit(stream, work_copy(&work), NULL);
}

CUresult IMPL(cuStreamAddCallback)(CUstream hStream, CUstreamCallback callback, void *userData,
                                   unsigned int flags) {
    CUstream stream;
    CUresult result = stream_resolve(hStream, &stream);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (callback == NULL || flags != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    struct work work = {.kind = WORK_CALLBACK, .callback = {callback, hStream, userData}};
    return stream_submit(stream, work_copy(&work), NULL);
}
