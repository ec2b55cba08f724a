/* See drain.h. */
#include "cuda/drain.h"

#include "cuda/cuda.h"
#include "cuda/stream_marks.h"
#include "launches/captures.h"
#include "wire/words.h"

#include <stddef.h>
#include <stdint.h>

#define MOST_STREAMS ((uint32_t)(TL_MARKS_OF_GATES - TL_MARKS_OF_READERS))
#define NO_PLACE UINT32_MAX

struct seen {
    struct tl_stream_name name;
    atomic_uint told; /* the last value that its mark was told to take */
    bool left;        /* its handle means nothing any more */
};

atomic_bool tl_drain_watching;
static struct tl_lock lock;
static struct seen streams[MOST_STREAMS]; /* a place is a stream's until the next job */
static uint32_t count;
static atomic_bool blind;
static atomic_uint epoch;
static _Thread_local void *last;
static _Thread_local unsigned int last_epoch; /* 0: none */
static _Thread_local uint32_t own_place;      /* of the thread's own stream, in this job */
static _Thread_local bool unmarked; /* the call under way goes to the thread's own stream */

static uint32_t mark_of(uint32_t place) {
    return TL_MARKS_OF_READERS + place;
}

static uint32_t find(struct tl_stream_name name) {
    for (uint32_t i = 0; i < count; i++) {
        const struct seen *stream = &streams[i];
        if (!stream->left && stream->name.handle == name.handle &&
            stream->name.thread == name.thread) {
            return i;
        }
    }
    return NO_PLACE;
}

static uint32_t add(struct tl_stream_name name) {
    if (count == MOST_STREAMS) {
        atomic_store(&blind, true);
        return NO_PLACE;
    }
    struct seen *stream = &streams[count];
    stream->name = name;
    stream->left = false;
    atomic_store(&stream->told, tl_mark_seen(mark_of(count)));
    return count++;
}

void tl_drain_note(void *stream, bool per_thread) {
    unsigned int now = atomic_load_explicit(&epoch, memory_order_relaxed) + 1;
    struct tl_stream_name name = tl_stream_name(stream, per_thread);
    if (last != name.handle || last_epoch != now) {
        tl_lock_acquire(&lock);
        uint32_t place = find(name);
        place = place != NO_PLACE ? place : add(name);
        tl_lock_release(&lock);
        own_place = name.thread != 0 ? place : own_place;
        last = name.handle;
        last_epoch = now;
    }
    unmarked = unmarked || name.thread != 0;
}

/* After everything that the stream was given so far. */
static void mark(uint32_t place) {
    struct seen *stream = &streams[place];
    unsigned int value = atomic_load(&stream->told) + 1;
    atomic_store(&stream->told, value);
    if (tl_mark_write(stream->name.handle, mark_of(place), value) != ABI_SUCCESS) {
        atomic_store(&blind, true);
        atomic_store(&stream->told, value - 1);
    }
}

void tl_drain_after(void) {
    if (!unmarked) {
        return;
    }
    unmarked = false;
    /* What is captured runs later, in a graph, which is launched into some stream. */
    if (captures_now(NULL, true)) {
        return;
    }
    if (own_place != NO_PLACE) {
        mark(own_place);
    }
}

void tl_drain_leave(void *stream, bool per_thread) {
    struct tl_stream_name name = tl_stream_name(stream, per_thread);
    if (name.thread != 0) {
        return; /* marked by now */
    }
    tl_lock_acquire(&lock);
    uint32_t place = find(name);
    if (place != NO_PLACE) {
        mark(place);
        streams[place].left = true;
    }
    tl_lock_release(&lock);
    atomic_fetch_add(&epoch, 1); /* another one may get its handle */
}

void tl_drain_restart(void) {
    tl_lock_acquire(&lock);
    count = 0;
    atomic_store(&blind, false);
    tl_lock_release(&lock);
    atomic_fetch_add(&epoch, 1);
}

void tl_drain_forget(void) {
    lock.word = 0;
    tl_drain_restart();
}

static bool is_done(uint32_t place) {
    const struct seen *stream = &streams[place];
    if (stream->left || stream->name.thread != 0) {
        return (int32_t)(tl_mark_seen(mark_of(place)) - atomic_load(&stream->told)) >= 0;
    }
    return TL_CUDA(USED, cuStreamQuery, stream->name.handle) != ABI_NOT_READY;
}

bool tl_drain_done(void) {
    int mode;
    tl_cuda_relax(&mode);
    tl_lock_acquire(&lock);
    bool done = true;
    for (uint32_t i = 0; i < count && done; i++) {
        done = is_done(i);
    }
    tl_lock_release(&lock);
    tl_cuda_restore(&mode);
    return done;
}

bool tl_drain_sees_all(void) {
    return atomic_load(&tl_drain_watching) && !atomic_load(&blind);
}
