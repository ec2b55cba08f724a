/* See driver.h. */
#include "driver/driver.h"

#include <dlfcn.h>
#include <stdatomic.h>

#include "driver/intercept.h"

static _Atomic(hook_function *) functions[FUNCTION_COUNT];
static _Atomic(void *) handles[LIBRARY_COUNT];

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
    /* The C library, called from here, says what comes after this library. Through another
     * interposer's dlsym it would be what comes after that one. */
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
