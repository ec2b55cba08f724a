/* See changes.h. A figure counts in whole steps of 2 MiB, rounded up: the smallest extent. */
#include "budget/changes.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "driver/driver.h"
#include "tierline/interposer.h"

enum { STEP_BYTES = 2 << 20 };

/* A pair never changes, because a thread may still be in it; there are as many as were set. */
struct listener {
    tierline_change *function;
    void *context;
    struct listener *older;
};

typedef void own_listener(void);

static _Atomic(struct listener *) listener;
static _Atomic(own_listener *) own;
static atomic_bool noted;
static _Atomic uint64_t told_unswappable, told_spilled, told_on_device; /* steps */

void changes_note(void) {
    atomic_store_explicit(&noted, true, memory_order_release);
}

static uint64_t steps(uint64_t bytes) {
    return (bytes + STEP_BYTES - 1) / STEP_BYTES;
}

static bool moves(_Atomic uint64_t *told, uint64_t bytes) {
    return atomic_exchange(told, steps(bytes)) != steps(bytes);
}

void changes_tell(void (*figures)(struct changes_figures *now)) {
    const struct listener *now = atomic_load_explicit(&listener, memory_order_acquire);
    own_listener *ours = atomic_load_explicit(&own, memory_order_acquire);
    bool asked = now != NULL && now->function != NULL;
    if ((!asked && ours == NULL) || !atomic_load_explicit(&noted, memory_order_relaxed) ||
        !atomic_exchange(&noted, false)) {
        return;
    }
    struct changes_figures held;
    figures(&held);
    bool moved = moves(&told_unswappable, held.unswappable);
    moved |= moves(&told_spilled, held.spilled);
    if (moved && asked) {
        now->function(now->context);
    }
    moved |= moves(&told_on_device, held.on_device);
    if (moved && ours != NULL) {
        ours();
    }
}

void changes_own(void (*function)(void)) {
    atomic_store_explicit(&own, function, memory_order_release);
}

void changes_forget(void) {
    atomic_store(&own, NULL);
    for (struct listener *old = atomic_exchange(&listener, NULL); old != NULL;) {
        struct listener *older = old->older;
        free(old);
        old = older;
    }
    atomic_store(&told_unswappable, 0);
    atomic_store(&told_spilled, 0);
    atomic_store(&told_on_device, 0);
}

TIERLINE_EXPORT int tierline_interposer_on_change(tierline_change *function, void *context) {
    struct listener *fresh = malloc(sizeof *fresh);
    if (fresh == NULL) {
        return -ENOMEM;
    }
    *fresh = (struct listener){function, context, atomic_load(&listener)};
    while (!atomic_compare_exchange_weak(&listener, &fresh->older, fresh)) {
    }
    return 0;
}
