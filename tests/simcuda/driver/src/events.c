/* Recording, waiting for and timing events. See events.h. */
#include "events.h"

#include <pthread.h>
#include <stdlib.h>

#include "capture.h"
#include "entry.h"
#include "objects.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

struct fence *event_fence(CUevent event) {
    pthread_mutex_lock(&lock);
    struct fence *fence = fence_hold(event->fence);
    pthread_mutex_unlock(&lock);
    return fence;
}

bool event_recorded(CUevent event) {
    pthread_mutex_lock(&lock);
    bool recorded = event->fence != NULL;
    pthread_mutex_unlock(&lock);
    return recorded;
}

void event_set_fence(CUevent event, struct fence *fence) {
    pthread_mutex_lock(&lock);
    struct fence *before = event->fence;
    event->fence = fence;
    pthread_mutex_unlock(&lock);
    fence_release(before);
}

static CUresult event_check(CUevent event) {
    if (!driver_ready()) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    if (!object_is(event, OBJECT_EVENT)) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    return object_is(event->ctx, OBJECT_CONTEXT) && event->ctx->id == event->context_id
               ? context_health(event->ctx)
               : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

CUresult IMPL(cuEventCreate)(CUevent *phEvent, unsigned int Flags) {
    CUcontext ctx;
    CUresult result = context_current(&ctx);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    const unsigned known = CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING;
    if (Flags & CU_EVENT_INTERPROCESS) {
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    if (phEvent == NULL || (Flags & ~known) != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUevent event = calloc(1, sizeof *event);
    if (event == NULL || !object_add(event, OBJECT_EVENT)) {
        free(event);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    event->ctx = ctx;
    event->context_id = ctx->id;
    event->flags = Flags;
    *phEvent = event;
    return CUDA_SUCCESS;
}

CUresult IMPL(cuEventDestroy_v2)(CUevent hEvent) {
    if (!driver_ready()) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    if (!object_remove(hEvent, OBJECT_EVENT)) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    capture_forget_event(hEvent);
    event_set_fence(hEvent, NULL);
    free(hEvent);
    return CUDA_SUCCESS;
}

CUresult IMPL(cuEventDestroy)(CUevent hEvent) {
    return IMPL(cuEventDestroy_v2)(hEvent);
}

CUresult IMPL(cuEventRecordWithFlags)(CUevent hEvent, CUstream hStream, unsigned int flags) {
    CUstream stream;
    CUresult result = stream_resolve(hStream, &stream);
    if (result == CUDA_SUCCESS) {
        result = event_check(hEvent);
    }
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if ((flags & ~(unsigned)CU_EVENT_RECORD_EXTERNAL) != 0 || hEvent->ctx != stream->ctx) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    bool captured = false;
    result = capture_record(stream, hEvent, flags, &captured);
    if (captured || result != CUDA_SUCCESS) {
        return result;
    }
    if (flags != 0) {
        return CUDA_ERROR_ILLEGAL_STATE;
    }
    struct fence *fence = NULL;
    result = stream_submit(stream, calloc(1, sizeof(struct work)), &fence);
    if (result == CUDA_SUCCESS) {
        event_set_fence(hEvent, fence);
    }
    return result;
}

CUresult IMPL(cuEventRecord)(CUevent hEvent, CUstream hStream) {
    return IMPL(cuEventRecordWithFlags)(hEvent, hStream, CU_EVENT_RECORD_DEFAULT);
}

CUresult IMPL(cuStreamWaitEvent)(CUstream hStream, CUevent hEvent, unsigned int Flags) {
    CUstream stream;
    CUresult result = stream_resolve(hStream, &stream);
    if (result == CUDA_SUCCESS) {
        result = event_check(hEvent);
    }
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if ((Flags & ~(unsigned)CU_EVENT_WAIT_EXTERNAL) != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    bool captured = false;
    result = capture_wait(stream, hEvent, Flags, &captured);
    if (captured || result != CUDA_SUCCESS) {
        return result;
    }
    struct fence *fence = event_fence(hEvent);
    if (fence != NULL) {
        result = stream_after(stream, fence);
        fence_release(fence);
    }
    return result;
}

CUresult IMPL(cuEventQuery)(CUevent hEvent) {
    CUresult result = event_check(hEvent);
    if (result == CUDA_SUCCESS) {
        result = capture_event_forbids(hEvent);
    }
    if (result != CUDA_SUCCESS) {
        return result;
    }
    struct fence *fence = event_fence(hEvent);
    bool done = fence == NULL || fence_is_seen_done(hEvent->ctx, fence);
    fence_release(fence);
    return done ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult IMPL(cuEventSynchronize)(CUevent hEvent) {
    CUresult result = event_check(hEvent);
    if (result == CUDA_SUCCESS) {
        result = capture_event_forbids(hEvent);
    }
    if (result != CUDA_SUCCESS) {
        return result;
    }
    struct fence *fence = event_fence(hEvent);
    if (fence != NULL) {
        fence_wait(hEvent->ctx, fence);
        fence_release(fence);
    }
    return context_health(hEvent->ctx);
}

CUresult IMPL(cuEventElapsedTime_v2)(float *pMilliseconds, CUevent hStart, CUevent hEnd) {
    CUresult result = event_check(hStart);
    if (result == CUDA_SUCCESS) {
        result = event_check(hEnd);
    }
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (pMilliseconds == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if ((hStart->flags | hEnd->flags) & CU_EVENT_DISABLE_TIMING) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    struct fence *start = event_fence(hStart);
    struct fence *end = event_fence(hEnd);
    uint64_t start_ns = 0;
    uint64_t end_ns = 0;
    if (start == NULL || end == NULL) {
        result = CUDA_ERROR_INVALID_HANDLE;
    } else if (!fence_is_done(start, &start_ns) || !fence_is_done(end, &end_ns)) {
        result = CUDA_ERROR_NOT_READY;
    } else {
        *pMilliseconds = (float)((double)(int64_t)(end_ns - start_ns) / 1e6);
    }
    fence_release(start);
    fence_release(end);
    return result;
}

CUresult IMPL(cuEventElapsedTime)(float *pMilliseconds, CUevent hStart, CUevent hEnd) {
    return IMPL(cuEventElapsedTime_v2)(pMilliseconds, hStart, hEnd);
}
