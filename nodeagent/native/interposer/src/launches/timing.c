/* See timing.h. Under a lock of its own, which is held during calls of the driver that return at
 * once. What an event could not be made for is left out. */
#include "launches/timing.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "driver/driver.h"

enum { MOST_TIMES = 1 << 16 };

struct entry {
    uint64_t launch;
    void *event;
    bool borrowed;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static atomic_bool on, graphs_too;
static void *base; /* the event before the first launch */
static struct entry *entries;
static uint32_t count, room;

bool timing_on(void) {
    return atomic_load_explicit(&on, memory_order_relaxed);
}

bool timing_graphs(void) {
    return atomic_load_explicit(&graphs_too, memory_order_relaxed);
}

/* An event that was recorded on the call's stream, or NULL. */
static void *record(const struct tierline_call *call) {
    cuEventCreate_function *create = (cuEventCreate_function *)driver_next(USED_cuEventCreate);
    cuEventRecord_function *put = (cuEventRecord_function *)driver_next(
        call->per_thread ? USED_cuEventRecord_ptsz : USED_cuEventRecord);
    void *event = NULL;
    if (create == NULL || put == NULL || create(&event, 0) != ABI_SUCCESS) {
        return NULL;
    }
    return put(event, call->stream) == ABI_SUCCESS ? event : NULL;
}

static bool make_room(uint32_t wanted) {
    while (count + wanted > room && room < MOST_TIMES) {
        uint32_t more = room == 0 ? 256 : room * 2;
        struct entry *larger = realloc(entries, more * sizeof *entries);
        if (larger == NULL) {
            return false;
        }
        entries = larger;
        room = more;
    }
    return count + wanted <= room;
}

void timing_before(struct tierline_call *call, uint64_t launch) {
    pthread_mutex_lock(&lock);
    if (timing_on() && make_room(1)) {
        base = base == NULL ? record(call) : base;
        call->timed = base != NULL;
        call->launch = launch;
    }
    pthread_mutex_unlock(&lock);
}

void timing_after(const struct tierline_call *call) {
    pthread_mutex_lock(&lock);
    void *event = base != NULL && make_room(1) ? record(call) : NULL;
    if (event != NULL) {
        entries[count++] = (struct entry){.launch = call->launch, .event = event};
    }
    pthread_mutex_unlock(&lock);
}

bool timing_borrow(const struct tierline_call *call, const uint64_t *launches, void *const *events,
                   uint32_t more) {
    pthread_mutex_lock(&lock);
    bool fits = timing_on() && more <= MOST_TIMES && make_room(more);
    if (fits) {
        base = base == NULL ? record(call) : base;
        fits = base != NULL;
    }
    for (uint32_t i = 0; fits && i < more; i++) {
        entries[count++] =
            (struct entry){.launch = launches[i], .event = events[i], .borrowed = true};
    }
    pthread_mutex_unlock(&lock);
    return fits;
}

void timing_give_back(void) {
    pthread_mutex_lock(&lock);
    uint32_t kept = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (!entries[i].borrowed) {
            entries[kept++] = entries[i];
        }
    }
    count = kept;
    pthread_mutex_unlock(&lock);
}

static void drop(bool destroy) {
    cuEventDestroy_v2_function *end =
        destroy ? (cuEventDestroy_v2_function *)driver_next(USED_cuEventDestroy_v2) : NULL;
    for (uint32_t i = 0; i < count && end != NULL; i++) {
        if (!entries[i].borrowed) {
            end(entries[i].event);
        }
    }
    if (base != NULL && end != NULL) {
        end(base);
    }
    base = NULL;
    free(entries);
    entries = NULL;
    count = 0;
    room = 0;
}

void timing_restart(void) {
    pthread_mutex_lock(&lock);
    drop(true);
    pthread_mutex_unlock(&lock);
}

void timing_forget(void) {
    atomic_store(&on, false);
    atomic_store(&graphs_too, false);
    pthread_mutex_init(&lock, NULL);
    drop(false);
}

TIERLINE_EXPORT void tierline_observer_time(bool wanted) {
    timing_restart();
    atomic_store(&on, wanted);
}

TIERLINE_EXPORT void tierline_observer_time_graphs(bool wanted) {
    atomic_store(&graphs_too, wanted);
}

TIERLINE_EXPORT uint32_t tierline_observer_times(tierline_time *out, uint32_t capacity) {
    cuEventElapsedTime_function *elapsed =
        (cuEventElapsedTime_function *)driver_next(USED_cuEventElapsedTime);
    cuEventSynchronize_function *wait =
        (cuEventSynchronize_function *)driver_next(USED_cuEventSynchronize);
    pthread_mutex_lock(&lock);
    uint32_t found = count;
    for (uint32_t i = 0; i < count && i < capacity; i++) {
        float time_ms = 0;
        bool known = elapsed != NULL && wait != NULL && wait(entries[i].event) == ABI_SUCCESS &&
                     elapsed(&time_ms, base, entries[i].event) == ABI_SUCCESS;
        out[i] = (tierline_time){.launch = entries[i].launch,
                                 .end_ns = known ? (uint64_t)(time_ms * 1e6F) : 0};
    }
    pthread_mutex_unlock(&lock);
    return found;
}
