/* See drain.h. */
#include "drain.h"

#include "cuda.h"
#include "words.h"

#include <stddef.h>
#include <stdint.h>

#define MOST_STREAMS 128U

atomic_bool tl_drain_watching;
static struct tl_lock lock;
static void *streams[MOST_STREAMS];
static uint32_t count;
static atomic_uint epoch;
static _Thread_local void *last;
static _Thread_local unsigned int last_epoch; /* 0: none */

static void *normal(void *stream) {
    uintptr_t number = ABI_LEGACY_STREAM;
    return stream != NULL ? stream : (void *)number; /* NOLINT(performance-no-int-to-ptr) */
}

static bool is_threads_own(const void *stream, bool per_thread) {
    return (stream == NULL && per_thread) || (uintptr_t)stream == ABI_THREAD_STREAM;
}

void tl_drain_note(void *stream, bool per_thread) {
    unsigned int now = atomic_load_explicit(&epoch, memory_order_relaxed) + 1;
    void *handle = normal(stream);
    if ((last == handle && last_epoch == now) || is_threads_own(stream, per_thread)) {
        return;
    }
    tl_lock_acquire(&lock);
    bool known = false;
    for (uint32_t i = 0; i < count && !known; i++) {
        known = streams[i] == handle;
    }
    if (!known && count < MOST_STREAMS) {
        streams[count++] = handle;
    }
    tl_lock_release(&lock);
    last = handle;
    last_epoch = now;
}

void tl_drain_leave(void *stream, bool per_thread) {
    if (is_threads_own(stream, per_thread)) {
        return;
    }
    tl_lock_acquire(&lock);
    for (uint32_t i = 0; i < count; i++) {
        if (streams[i] == normal(stream)) {
            streams[i] = streams[--count];
            break;
        }
    }
    tl_lock_release(&lock);
    atomic_fetch_add(&epoch, 1); /* another one may get its handle */
}

void tl_drain_restart(void) {
    tl_lock_acquire(&lock);
    count = 0;
    tl_lock_release(&lock);
    atomic_fetch_add(&epoch, 1);
}

bool tl_drain_done(void) {
    int mode;
    tl_cuda_relax(&mode);
    tl_lock_acquire(&lock);
    bool done = true;
    for (uint32_t i = 0; i < count && done; i++) {
        done = TL_CUDA(USED, cuStreamQuery, streams[i]) != ABI_NOT_READY;
    }
    tl_lock_release(&lock);
    tl_cuda_restore(&mode);
    return done;
}
