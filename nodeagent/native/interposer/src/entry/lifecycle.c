/* See lifecycle.h. */
#include "entry/lifecycle.h"

#include <stdatomic.h>

#include "budget/budget.h"
#include "budget/ledger.h"
#include "driver/at_fork.h"
#include "driver/driver.h"
#include "entry/presence.h"
#include "graphs/graphs.h"
#include "launches/captures.h"
#include "launches/observer.h"
#include "memory/ranges.h"
#include "memory/spill.h"
#include "memory/swap.h"
#include "tierline/interposer.h"

enum { MAX_DEVICES = 64 };

static _Atomic(const void *) primary[MAX_DEVICES]; /* contexts */
static atomic_bool active;
static atomic_bool fork_handled;
static _Thread_local int depth;

bool hook_enter(void) {
    if (depth > 0 || !atomic_load_explicit(&active, memory_order_acquire)) {
        return false;
    }
    depth++;
    return true;
}

void hook_leave(void) {
    ledger_tell();
    depth--;
}

bool lifecycle_active(void) {
    return atomic_load_explicit(&active, memory_order_acquire);
}

void lifecycle_context_ended(const void *context) {
    ledger_forget_context(context);
    spill_forget_context(context);
    captures_context_ended(context);
    if (&lifecycle_tenant != NULL) {
        lifecycle_tenant.context_ended(context);
    }
    swap_forget_context(context);
}

void lifecycle_primary_retained(int device, const void *context) {
    if (device >= 0 && device < MAX_DEVICES) {
        atomic_store(&primary[device], context);
    }
}

void lifecycle_primary_released(int device) {
    cuDevicePrimaryCtxGetState_function *ask =
        (cuDevicePrimaryCtxGetState_function *)driver_next(USED_cuDevicePrimaryCtxGetState);
    unsigned int flags = 0;
    int alive = 1;
    if (device >= 0 && device < MAX_DEVICES && ask != NULL &&
        ask(device, &flags, &alive) == ABI_SUCCESS && alive == 0) {
        const void *context = atomic_exchange(&primary[device], NULL);
        if (context != NULL) {
            lifecycle_context_ended(context);
        }
    }
}

/* CUDA does not survive a fork: the child drops everything, and may start again after exec. */
static void fork_before(void) {
    swap_fork_before(); /* a thread that borrows a workspace has others watch it */
    graphs_fork_before();
    observer_fork_before();
    ledger_fork_before();
    spill_fork_before();
    ranges_fork_before();
}

static void fork_in_parent(void) {
    ranges_fork_after(false);
    spill_fork_after(false);
    ledger_fork_after(false);
    observer_fork_after(false);
    graphs_fork_after(false);
    swap_fork_after(false);
}

static void fork_in_child(void) {
    atomic_store(&active, false);
    depth = 0;
    ranges_fork_after(true);
    spill_fork_after(true);
    ledger_fork_after(true);
    observer_fork_after(true);
    graphs_fork_after(true);
    swap_fork_after(true);
}

int handle_init(enum hook hook, unsigned int flags) {
    cuInit_function *next = (cuInit_function *)driver_next(hook);
    if (next == NULL) {
        return driver_missing();
    }
    if (depth > 0) {
        return next(flags);
    }
    depth++;
    int result = next(flags);
    if (result == ABI_SUCCESS && !atomic_load(&active)) {
        if (!atomic_exchange(&fork_handled, true)) {
            at_fork(fork_before, fork_in_parent, fork_in_child);
        }
        if (!budget_read_environment() || !spill_read_environment() || !swap_read_environment()) {
            result = ABI_INVALID_VALUE;
        } else if (!presence_permits_start()) {
            result = ABI_SYSTEM_NOT_READY;
        } else {
            atomic_store_explicit(&active, true, memory_order_release);
        }
    }
    depth--;
    return result;
}

TIERLINE_EXPORT bool tierline_interposer_active(void) {
    return lifecycle_active();
}
