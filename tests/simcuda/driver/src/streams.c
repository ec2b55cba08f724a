/* Queues, fences and the workers that empty them. See streams.h. */
#include "streams.h"

#include <execinfo.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include "capture.h"
#include "entry.h"
#include "lateness.h"
#include "objects.h"
#include "touches.h"
#include "transfers.h"

enum { STACK_FRAMES = 24 };

struct task {
    struct task *next;
    struct task *newer, **older; /* in the list of all that has not ended */
    CUcontext ctx;
    struct work *work;
    struct fence *fence;
    uint64_t late_ns;
    int frames;
    void *stack[STACK_FRAMES]; /* of the call that submitted it */
    size_t after_count;
    struct fence *after[];
};

/* Streams of this thread, one for each context in which it used the per-thread default stream. */
struct own_stream {
    struct own_stream *next;
    CUcontext ctx;
    uint64_t context_id; /* a new context may lie where an old one did */
    CUstream stream;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t progress = PTHREAD_COND_INITIALIZER; /* a fence is done, or a context over */
static struct task *unended;
static uint64_t next_stream_id = 1;
static pthread_key_t own_key;
static pthread_once_t own_once = PTHREAD_ONCE_INIT;

struct fence *fence_new(void) {
    struct fence *fence = calloc(1, sizeof *fence);
    if (fence != NULL) {
        fence->holders = 1;
    }
    return fence;
}

struct fence *fence_hold(struct fence *fence) {
    pthread_mutex_lock(&lock);
    if (fence != NULL) {
        fence->holders++;
    }
    pthread_mutex_unlock(&lock);
    return fence;
}

/* Under the lock. */
static void fence_drop(struct fence *fence) {
    if (fence != NULL && --fence->holders == 0) {
        free(fence);
    }
}

void fence_release(struct fence *fence) {
    pthread_mutex_lock(&lock);
    fence_drop(fence);
    pthread_mutex_unlock(&lock);
}

static void fence_finish(struct fence *fence) {
    fence->done = true;
    fence->time_ns = machine_now_ns();
    pthread_cond_broadcast(&progress);
}

void fence_complete(struct fence *fence) {
    pthread_mutex_lock(&lock);
    if (!fence->done) {
        fence_finish(fence);
    }
    pthread_mutex_unlock(&lock);
}

bool fence_is_done(struct fence *fence, uint64_t *time_ns) {
    pthread_mutex_lock(&lock);
    bool done = fence->done;
    if (done && time_ns != NULL) {
        *time_ns = fence->time_ns;
    }
    pthread_mutex_unlock(&lock);
    return done;
}

static bool context_ended(CUcontext ctx) {
    return atomic_load(&ctx->ending) || atomic_load(&ctx->error) != CUDA_SUCCESS;
}

/* What the fence ends, and all that comes before it, is late no more. Under the lock. */
static void fence_demand(CUcontext ctx, const struct fence *fence) {
    for (CUstream stream = ctx->streams; stream != NULL; stream = stream->next) {
        if (stream->id == fence->stream && stream->demanded < fence->number) {
            stream->demanded = fence->number;
            pthread_cond_broadcast(&progress);
        }
    }
}

bool fence_is_seen_done(CUcontext ctx, struct fence *fence) {
    pthread_mutex_lock(&lock);
    bool done = fence->done;
    if (!done) {
        fence_demand(ctx, fence);
    }
    pthread_mutex_unlock(&lock);
    return done;
}

void fence_wait(CUcontext ctx, struct fence *fence) {
    pthread_mutex_lock(&lock);
    fence_demand(ctx, fence);
    while (!fence->done && !context_ended(ctx)) {
        pthread_cond_wait(&progress, &lock);
    }
    pthread_mutex_unlock(&lock);
}

void streams_wake(void) {
    pthread_mutex_lock(&lock);
    pthread_cond_broadcast(&progress);
    pthread_mutex_unlock(&lock);
}

/* Takes the first task; waits for one. NULL when the stream is to end. Under the lock. */
static struct task *stream_next(CUstream stream) {
    while (stream->first == NULL && !stream->closing && !atomic_load(&stream->ctx->ending)) {
        pthread_cond_wait(&stream->wake, &lock);
    }
    struct task *task = stream->first;
    if (task != NULL) {
        stream->first = task->next;
        if (stream->first == NULL) {
            stream->last = &stream->first;
        }
    }
    return task;
}

static void stream_leave(CUstream stream) {
    CUcontext ctx = stream->ctx;
    for (CUstream *link = &ctx->streams; *link != NULL; link = &(*link)->next) {
        if (*link == stream) {
            *link = stream->next;
            break;
        }
    }
    fence_drop(stream->tail);
    pthread_cond_destroy(&stream->wake);
    free(stream);
    ctx->workers--;
    pthread_cond_broadcast(&progress);
}

static bool is_demanded(CUstream stream, const struct task *task) {
    return stream->demanded >= task->fence->number;
}

/* Under the lock. */
static void task_await_others(CUstream stream, struct task *task) {
    for (size_t i = 0; i < task->after_count; i++) {
        while (!task->after[i]->done && !context_ended(stream->ctx)) {
            if (is_demanded(stream, task)) {
                fence_demand(stream->ctx, task->after[i]);
            }
            pthread_cond_wait(&progress, &lock);
        }
        fence_drop(task->after[i]);
    }
}

/* Under the lock. */
static void task_be_late(CUstream stream, const struct task *task) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    uint64_t ns = (uint64_t)until.tv_nsec + task->late_ns;
    until.tv_sec += (time_t)(ns / 1000000000);
    until.tv_nsec = (long)(ns % 1000000000);
    int waited = task->late_ns > 0 ? 0 : -1;
    while (waited == 0 && !is_demanded(stream, task) && !context_ended(stream->ctx)) {
        waited = pthread_cond_timedwait(&progress, &lock, &until);
    }
}

/* Under the lock. */
static void task_enter(struct task *task) {
    task->newer = unended;
    task->older = &unended;
    if (unended != NULL) {
        unended->older = &task->newer;
    }
    unended = task;
}

static void task_leave(struct task *task) {
    *task->older = task->newer;
    if (task->newer != NULL) {
        task->newer->older = task->older;
    }
}

void streams_check_untouched(uint64_t base, uint64_t size, const char *what) {
    pthread_mutex_lock(&lock);
    const struct task *task = unended;
    while (task != NULL && (context_ended(task->ctx) || !work_touches(task->work, base, size))) {
        task = task->newer;
    }
    if (task == NULL) {
        pthread_mutex_unlock(&lock);
        return;
    }
    void *stack[STACK_FRAMES];
    int frames = backtrace(stack, STACK_FRAMES);
    fprintf(stderr,
            "simcuda: fault: %s of %#llx (%llu bytes) while %s that may touch them has not ended; "
            "the call:\n",
            what, (unsigned long long)base, (unsigned long long)size, work_name(task->work));
    fflush(stderr);
    backtrace_symbols_fd(stack, frames, STDERR_FILENO);
    fprintf(stderr, "simcuda: it was submitted by:\n");
    fflush(stderr);
    backtrace_symbols_fd(task->stack, task->frames, STDERR_FILENO);
    abort();
}

static void *stream_work(void *argument) {
    CUstream stream = argument;
    CUcontext ctx = stream->ctx;
    /* Engines are timed by sleeping; the kernel's usual slack of 50 us would show. */
    prctl(PR_SET_TIMERSLACK, 1);
    pthread_mutex_lock(&lock);
    for (struct task *task; (task = stream_next(stream)) != NULL;) {
        task_await_others(stream, task);
        task_be_late(stream, task);
        pthread_mutex_unlock(&lock);
        /* A callback learns of the error; all other work of a dead context is dropped. */
        if (!context_is_over(ctx) || task->work->kind == WORK_CALLBACK) {
            CUresult result = work_perform(ctx, task->work);
            if (result != CUDA_SUCCESS) {
                context_fail(ctx, result);
            }
        }
        pthread_mutex_lock(&lock);
        task_leave(task);
        pthread_mutex_unlock(&lock);
        work_free(task->work);
        pthread_mutex_lock(&lock);
        fence_finish(task->fence);
        fence_drop(task->fence);
        free(task);
    }
    stream_leave(stream);
    pthread_mutex_unlock(&lock);
    return NULL;
}

CUresult stream_open(CUcontext ctx, unsigned flags, int priority, CUstream *opened) {
    CUstream stream = calloc(1, sizeof *stream);
    if (stream == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    stream->ctx = ctx;
    stream->flags = flags;
    stream->priority = priority;
    stream->last = &stream->first;
    pthread_cond_init(&stream->wake, NULL);
    pthread_attr_t attributes;
    pthread_t worker;
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_mutex_lock(&lock);
    stream->id = next_stream_id++;
    int failure = pthread_create(&worker, &attributes, stream_work, stream);
    if (failure == 0) {
        stream->next = ctx->streams;
        ctx->streams = stream;
        ctx->workers++;
    }
    pthread_mutex_unlock(&lock);
    pthread_attr_destroy(&attributes);
    if (failure != 0) {
        free(stream);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *opened = stream;
    return CUDA_SUCCESS;
}

void stream_close(CUstream stream) {
    pthread_mutex_lock(&lock);
    stream->closing = true;
    pthread_cond_signal(&stream->wake);
    pthread_mutex_unlock(&lock);
}

void streams_end(CUcontext ctx) {
    pthread_mutex_lock(&lock);
    atomic_store(&ctx->ending, true);
    for (CUstream stream = ctx->streams; stream != NULL; stream = stream->next) {
        object_remove(stream, OBJECT_STREAM);
        pthread_cond_signal(&stream->wake);
    }
    pthread_cond_broadcast(&progress);
    while (ctx->workers > 0) {
        pthread_cond_wait(&progress, &lock);
    }
    pthread_mutex_unlock(&lock);
}

static void own_streams_close(void *first) {
    for (struct own_stream *own = first, *next; own != NULL; own = next) {
        next = own->next;
        /* The context may have ended before the thread; then its stream is gone already. */
        if (object_remove(own->stream, OBJECT_STREAM)) {
            stream_close(own->stream);
        }
        free(own);
    }
}

static void own_key_make(void) {
    pthread_key_create(&own_key, own_streams_close);
}

static CUresult stream_of_thread(CUcontext ctx, CUstream *stream) {
    pthread_once(&own_once, own_key_make);
    struct own_stream *first = pthread_getspecific(own_key);
    for (struct own_stream *own = first; own != NULL; own = own->next) {
        if (own->ctx == ctx && own->context_id == ctx->id) {
            *stream = own->stream;
            return CUDA_SUCCESS;
        }
    }
    struct own_stream *own = calloc(1, sizeof *own);
    if (own == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    CUresult result = stream_open(ctx, 0, 0, &own->stream);
    if (result != CUDA_SUCCESS) {
        free(own);
        return result;
    }
    object_add(own->stream, OBJECT_STREAM);
    own->ctx = ctx;
    own->context_id = ctx->id;
    own->next = first;
    pthread_setspecific(own_key, own);
    *stream = own->stream;
    return CUDA_SUCCESS;
}

CUresult stream_resolve(CUstream handle, CUstream *stream) {
    CUcontext ctx;
    if (handle == NULL) {
        handle = entry_per_thread_stream() ? CU_STREAM_PER_THREAD : CU_STREAM_LEGACY;
    }
    if (handle != CU_STREAM_LEGACY && handle != CU_STREAM_PER_THREAD) {
        if (!driver_ready()) {
            return CUDA_ERROR_NOT_INITIALIZED;
        }
        if (!object_is(handle, OBJECT_STREAM)) {
            return CUDA_ERROR_INVALID_HANDLE;
        }
        *stream = handle;
        return context_health(handle->ctx);
    }
    CUresult result = context_current(&ctx);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (handle == CU_STREAM_PER_THREAD) {
        return stream_of_thread(ctx, stream);
    }
    *stream = ctx->legacy;
    return CUDA_SUCCESS;
}

/* The fences that new work of the stream must follow by the rules of the legacy stream; `demand`:
 * none of them is late any more. Under the lock. */
static size_t stream_barriers(CUstream stream, struct fence **fences, bool demand) {
    CUcontext ctx = stream->ctx;
    size_t count = 0;
    bool legacy = stream == ctx->legacy;
    for (CUstream other = ctx->streams; other != NULL; other = other->next) {
        bool ordered = legacy ? !(other->flags & CU_STREAM_NON_BLOCKING) : other == ctx->legacy;
        if (other == stream || !ordered || other->tail == NULL || other->tail->done) {
            continue;
        }
        if (demand) {
            fence_demand(ctx, other->tail);
        }
        if (fences != NULL) {
            other->tail->holders++;
            fences[count] = other->tail;
        }
        count++;
    }
    return stream->flags & CU_STREAM_NON_BLOCKING && !legacy ? 0 : count;
}

/* Appends a task that follows `after` (held by the caller; NULL for none). */
static CUresult stream_enqueue(CUstream stream, struct work *work, struct fence *after,
                               struct fence **fence) {
    struct fence *end = fence_new();
    void *stack[STACK_FRAMES];
    int frames = backtrace(stack, STACK_FRAMES);
    pthread_mutex_lock(&lock);
    bool blocking = !(stream->flags & CU_STREAM_NON_BLOCKING);
    size_t most = (blocking ? stream_barriers(stream, NULL, false) : 0) + 1;
    struct task *task = calloc(1, sizeof *task + most * sizeof(struct fence *));
    if (task == NULL || end == NULL) {
        pthread_mutex_unlock(&lock);
        free(task);
        free(end);
        work_free(work);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    task->ctx = stream->ctx;
    task->work = work;
    task->fence = end;
    task->late_ns = lateness_next(work);
    task->frames = frames;
    memcpy(task->stack, stack, sizeof stack);
    end->stream = stream->id;
    end->number = ++stream->submitted;
    if (blocking) {
        task->after_count = stream_barriers(stream, task->after, false);
    }
    if (after != NULL) {
        after->holders++;
        task->after[task->after_count++] = after;
    }
    fence_drop(stream->tail);
    end->holders++;
    stream->tail = end;
    if (fence != NULL) {
        end->holders++;
        *fence = end;
    }
    *stream->last = task;
    stream->last = &task->next;
    task_enter(task);
    pthread_cond_signal(&stream->wake);
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}

CUresult stream_submit(CUstream stream, struct work *work, struct fence **fence) {
    if (fence != NULL) {
        *fence = NULL;
    }
    if (work == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    bool captured = false;
    CUresult result = capture_work(stream, work, &captured);
    if (captured) {
        return result;
    }
    if (work->kind == WORK_COPY && work->copy.staged && !copy_stage(&work->copy)) {
        work_free(work);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    return stream_enqueue(stream, work, NULL, fence);
}

CUresult stream_submit_and_wait(CUstream stream, struct work *work) {
    struct fence *fence = NULL;
    CUcontext ctx = stream->ctx;
    CUresult result = stream_submit(stream, work, &fence);
    if (result != CUDA_SUCCESS || fence == NULL) {
        return result;
    }
    fence_wait(ctx, fence);
    fence_release(fence);
    return context_health(ctx);
}

CUresult stream_after(CUstream stream, struct fence *fence) {
    struct work *work = calloc(1, sizeof *work);
    return work == NULL ? CUDA_ERROR_OUT_OF_MEMORY : stream_enqueue(stream, work, fence, NULL);
}

static struct fence *stream_tail(CUstream stream) {
    pthread_mutex_lock(&lock);
    struct fence *tail = stream->tail;
    if (tail != NULL) {
        tail->holders++;
    }
    pthread_mutex_unlock(&lock);
    return tail;
}

CUresult stream_drain(CUstream stream) {
    CUcontext ctx = stream->ctx;
    struct fence *tail = stream_tail(stream);
    if (tail != NULL) {
        fence_wait(ctx, tail);
        fence_release(tail);
    }
    return context_health(ctx);
}

CUresult streams_drain(CUcontext ctx) {
    pthread_mutex_lock(&lock);
    for (;;) {
        CUstream busy = ctx->streams;
        while (busy != NULL && (busy->tail == NULL || busy->tail->done)) {
            busy = busy->next;
        }
        if (busy != NULL) {
            fence_demand(ctx, busy->tail);
        }
        if (busy == NULL || context_ended(ctx)) {
            break;
        }
        pthread_cond_wait(&progress, &lock);
    }
    pthread_mutex_unlock(&lock);
    return context_health(ctx);
}

bool stream_is_idle(CUstream stream) {
    pthread_mutex_lock(&lock);
    bool idle = stream->tail == NULL || stream->tail->done;
    if (!idle) { /* asking is a demand, too */
        fence_demand(stream->ctx, stream->tail);
    }
    if (stream == stream->ctx->legacy) {
        idle = stream_barriers(stream, NULL, true) == 0 && idle;
    }
    pthread_mutex_unlock(&lock);
    return idle;
}
