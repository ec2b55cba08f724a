/* See proc_address.h.
 *
 * One name stands for several functions with different parameters. The version that the caller asks
 * for and the default stream choose among them as the driver's own rule does. A caller newer than
 * the table may get a function that the table has never heard of: then a hook is given only when
 * the driver's answer is exactly the function that this hook calls.
 */
#include "entry/proc_address.h"

#include "driver/driver.h"
#include "driver/names.h"

/* The newest hook of a name that is not newer than a CUDA version. */
static int find_version(const char *name, bool per_thread, int cuda_version) {
    int low = 0;
    int high = HOOK_VERSION_COUNT;
    while (low < high) {
        int middle = (low + high) / 2;
        if (names_compare(hook_versions[middle].name, name) < 0) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    int best = NO_HOOK;
    int best_since = -1;
    for (int i = low; i < HOOK_VERSION_COUNT && names_compare(hook_versions[i].name, name) == 0;
         i++) {
        const struct hook_version *entry = &hook_versions[i];
        if (entry->per_thread == per_thread && entry->since <= cuda_version &&
            entry->since > best_since) {
            best = (int)entry->hook;
            best_since = entry->since;
        }
    }
    return best;
}

static void replace(const char *symbol, void **function, int cuda_version, uint64_t flags) {
    int hook = NO_HOOK;
    if ((flags & ABI_PER_THREAD_STREAM) != 0) {
        hook = find_version(symbol, true, cuda_version);
    }
    if (hook == NO_HOOK) {
        hook = find_version(symbol, false, cuda_version);
    }
    bool exact = false;
    if (hook == NO_HOOK) {
        hook = names_find(symbol); /* some drivers also answer to a symbol's full name */
        exact = true;
    }
    if (hook == NO_HOOK) {
        return;
    }
    hook_function *answered = (hook_function *)*function;
    if ((exact || cuda_version > HOOK_CUDA_VERSION) && answered != driver_next(hook)) {
        return;
    }
    driver_learn((enum hook)hook, answered);
    *function = (void *)hook_functions[hook];
}

int handle_proc_address(enum hook hook, const char *symbol, void **function, int cuda_version,
                        uint64_t flags) {
    cuGetProcAddress_function *next = (cuGetProcAddress_function *)driver_next(hook);
    if (next == NULL) {
        return driver_missing();
    }
    int result = next(symbol, function, cuda_version, flags);
    if (result == ABI_SUCCESS && *function != NULL) {
        replace(symbol, function, cuda_version, flags);
    }
    return result;
}

int handle_proc_address_v2(enum hook hook, const char *symbol, void **function, int cuda_version,
                           uint64_t flags, void *status) {
    cuGetProcAddress_v2_function *next = (cuGetProcAddress_v2_function *)driver_next(hook);
    if (next == NULL) {
        return driver_missing();
    }
    int result = next(symbol, function, cuda_version, flags, status);
    if (result == ABI_SUCCESS && *function != NULL) {
        replace(symbol, function, cuda_version, flags);
    }
    return result;
}
