/* See driver.h. */
#include "driver.h"

#include <dlfcn.h>
#include <stdatomic.h>

#include "budget.h"
#include "captures.h"
#include "changes.h"
#include "graphs.h"
#include "intercept.h"
#include "ledger.h"
#include "observer.h"
#include "presence.h"
#include "ranges.h"
#include "spill.h"
#include "swap.h"
#include "tierline/interposer.h"

/* What glibc's pthread_atfork calls. musl lacks it, and must still load this library into programs
 * that have no driver. */
extern int __register_atfork(void (*before)(void), void (*parent)(void), void (*child)(void),
                             void *library) __attribute__((weak));
extern void *__dso_handle __attribute__((visibility("hidden")));

enum { MAX_DEVICES = 64 };

static _Atomic(hook_function *) functions[FUNCTION_COUNT];
static _Atomic(void *) handles[LIBRARY_COUNT];
static _Atomic(const void *) primary[MAX_DEVICES]; /* contexts */
static atomic_bool active;
static atomic_bool fork_handled;
static _Thread_local int depth;

/* A library, if the process has loaded it; it then stays loaded, as its functions are kept. */
static void *library_handle(unsigned int library) {
    void *handle = atomic_load_explicit(&handles[library], memory_order_acquire);
    if (handle != NULL) {
        return handle;
    }
    handle = dlopen(hook_libraries[library], RTLD_LAZY | RTLD_NOLOAD);
    if (handle == NULL) {
        dlerror(); /* the failure is not the program's */
        return NULL;
    }
    void *expected = NULL;
    if (!atomic_compare_exchange_strong(&handles[library], &expected, handle)) {
        dlclose(handle);
    }
    return handle;
}

hook_function *driver_next(int function) {
    hook_function *found = atomic_load_explicit(&functions[function], memory_order_acquire);
    if (found != NULL) {
        return found;
    }
    void *own = function < HOOK_COUNT ? (void *)hook_functions[function] : NULL;
    const char *name = hook_names[function];
    /* Who is behind this library is what the C library says, called from here. Through another
     * interposer's dlsym it would be who is behind that one. */
    intercept_dlsym *direct = intercept_last();
    intercept_dlsym *chained = intercept_next();
    if (direct == NULL || chained == NULL) {
        return NULL;
    }
    void *address = direct(RTLD_NEXT, name);
    void *library = address == NULL ? library_handle(hook_owners[function]) : NULL;
    if (address == NULL && library != NULL) {
        address = chained(library, name);
        /* One that answers with the first definition of a name answers with this library's. */
        address = address == NULL || address == own ? direct(library, name) : address;
    }
    if (address == NULL || address == own) {
        dlerror(); /* the failure is not the program's */
        return NULL;
    }
    found = (hook_function *)address;
    hook_function *expected = NULL;
    return atomic_compare_exchange_strong(&functions[function], &expected, found) ? found
                                                                                  : expected;
}

void driver_learn(enum hook hook, hook_function *function) {
    hook_function *expected = NULL;
    /* Only the driver's own: a function of an interposer in front would call back here for ever. */
    if (intercept_is_owners(hook, (const void *)function)) {
        atomic_compare_exchange_strong(&functions[hook], &expected, function);
    }
}

int driver_missing(void) {
    return library_handle(LIBRARY_CUDA) == NULL ? ABI_NOT_INITIALIZED : ABI_NOT_FOUND;
}

bool driver_enter(void) {
    if (depth > 0 || !atomic_load_explicit(&active, memory_order_acquire)) {
        return false;
    }
    depth++;
    return true;
}

void driver_leave(void) {
    changes_tell();
    depth--;
}

bool driver_active(void) {
    return atomic_load_explicit(&active, memory_order_acquire);
}

int driver_capture_status(void *stream, bool per_thread) {
    cuStreamIsCapturing_function *ask = (cuStreamIsCapturing_function *)driver_next(
        per_thread ? USED_cuStreamIsCapturing_ptsz : USED_cuStreamIsCapturing);
    int status = ABI_CAPTURE_NONE;
    return ask != NULL && ask(stream, &status) == ABI_SUCCESS ? status : (int)ABI_CAPTURE_NONE;
}

uint64_t driver_range_bytes(uint64_t address) {
    cuMemGetAddressRange_v2_function *ask = DRIVER(HOOK, cuMemGetAddressRange_v2);
    size_t bytes = 0;
    return ask != NULL && ask(NULL, &bytes, address) == ABI_SUCCESS ? bytes : 0;
}

const void *driver_context(void) {
    cuCtxGetCurrent_function *ask = (cuCtxGetCurrent_function *)driver_next(USED_cuCtxGetCurrent);
    void *context = NULL;
    return ask != NULL && ask(&context) == ABI_SUCCESS ? context : NULL;
}

void driver_context_ended(const void *context) {
    ledger_forget_context(context);
    spill_forget_context(context);
    captures_context_ended(context);
    if (&driver_tenant != NULL) {
        driver_tenant.context_ended(context);
    }
    swap_forget_context(context);
}

void driver_primary_retained(int device, const void *context) {
    if (device >= 0 && device < MAX_DEVICES) {
        atomic_store(&primary[device], context);
    }
}

void driver_primary_released(int device) {
    cuDevicePrimaryCtxGetState_function *ask =
        (cuDevicePrimaryCtxGetState_function *)driver_next(USED_cuDevicePrimaryCtxGetState);
    unsigned int flags = 0;
    int alive = 1;
    if (device >= 0 && device < MAX_DEVICES && ask != NULL &&
        ask(device, &flags, &alive) == ABI_SUCCESS && alive == 0) {
        const void *context = atomic_exchange(&primary[device], NULL);
        if (context != NULL) {
            driver_context_ended(context);
        }
    }
}

/* CUDA does not survive a fork: the child drops everything, and may start anew after exec. */
static void fork_before(void) {
    swap_fork_before(); /* who borrows a workspace has others watch it */
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
        if (__register_atfork != NULL && !atomic_exchange(&fork_handled, true)) {
            __register_atfork(fork_before, fork_in_parent, fork_in_child, &__dso_handle);
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
    return driver_active();
}
