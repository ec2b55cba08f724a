/* See captures.h. */
#include "launches/captures.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "driver/abi.h"
#include "driver/driver.h"
#include "launches/gate.h"
#include "tierline/interposer.h"

enum { MOST_CAPTURES = 64 }; /* more count until the process ends */

struct capture {
    uintptr_t stream; /* 0: the place is free */
    const void *context;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct capture captures[MOST_CAPTURES];
static atomic_int count;
static _Thread_local char own_stream; /* its address stands for the thread's default stream */

static uintptr_t name_of(const void *stream, bool per_thread) {
    uintptr_t number = per_thread ? ABI_THREAD_STREAM : ABI_LEGACY_STREAM;
    number = stream == NULL ? number : (uintptr_t)stream;
    return number == ABI_THREAD_STREAM ? (uintptr_t)&own_stream : number;
}

static bool matches(const struct capture *one, uintptr_t stream, const void *context) {
    return one->stream != 0 &&
           (one->stream == stream || (context != NULL && one->context == context));
}

/* Takes off one, or all, of a stream or of a context; 0 or NULL for the other. */
static void take_off(uintptr_t stream, const void *context, bool all) {
    bool found = false;
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < MOST_CAPTURES && (all || !found); i++) {
        if (matches(&captures[i], stream, context)) {
            captures[i] = (struct capture){0};
            atomic_fetch_sub(&count, 1);
            found = true;
        }
    }
    pthread_mutex_unlock(&lock);
}

int captures_begin(void *stream, bool per_thread) {
    struct capture fresh = {name_of(stream, per_thread), driver_context()};
    pthread_mutex_lock(&lock);
    atomic_fetch_add(&count, 1);
    for (size_t i = 0; i < MOST_CAPTURES; i++) {
        if (captures[i].stream == 0) {
            captures[i] = fresh;
            break;
        }
    }
    pthread_mutex_unlock(&lock);
    return gate_stream_leaves(stream, per_thread);
}

int captures_begun(int result, void *stream, bool per_thread) {
    if (result != ABI_SUCCESS) {
        take_off(name_of(stream, per_thread), NULL, false);
    }
    return result;
}

bool captures_end(void *stream, bool per_thread) {
    return driver_capture_status(stream, per_thread) != ABI_CAPTURE_NONE;
}

int captures_ended(int result, void *stream, bool per_thread) {
    /* An error may mean that it goes on, or that another thread has just ended it. */
    if (result != ABI_ILLEGAL_STATE &&
        driver_capture_status(stream, per_thread) == ABI_CAPTURE_NONE) {
        take_off(name_of(stream, per_thread), NULL, false);
    }
    return result;
}

int captures_stream_goes(void *stream, bool per_thread) {
    if (captures_any()) {
        take_off(name_of(stream, per_thread), NULL, true);
    }
    return gate_stream_leaves(stream, per_thread);
}

void captures_context_ended(const void *context) {
    if (captures_any()) {
        take_off(0, context, true);
    }
}

void captures_forget(void) {
    pthread_mutex_init(&lock, NULL);
    for (size_t i = 0; i < MOST_CAPTURES; i++) {
        captures[i] = (struct capture){0};
    }
    atomic_store(&count, 0);
}

bool captures_any(void) {
    return atomic_load(&count) > 0;
}

TIERLINE_EXPORT bool tierline_capturing(void) {
    return captures_any();
}

bool captures_now(void *stream, bool per_thread) {
    return captures_any() && driver_capture_status(stream, per_thread) == ABI_CAPTURE_ACTIVE;
}
