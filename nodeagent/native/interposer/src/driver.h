/* The functions behind the hooks, and when hooks do more than call them.
 *
 * A process is active from its first cuInit that succeeds until it forks; the child is not active
 * (CUDA does not work there either). A hook inside a hook, because the driver or a gate calls a
 * hooked function, does nothing but call the next one.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "hooks.h"

#define TIERLINE_EXPORT __attribute__((visibility("default")))

/* The next function of this name: an interposer's behind this one, or that of the driver (of NVML,
 * ...) itself. NULL when it is not loaded, or has no such function. Never one of this library. */
hook_function *driver_next(int function);

/* The same, typed: DRIVER(HOOK, cuMemMap) of a hooked function, DRIVER(USED, cuCtxGetCurrent). */
#define DRIVER(table, name) ((name##_function *)driver_next(table##_##name))

/* Notes a function that the driver handed out before anyone asked for it. */
void driver_learn(enum hook hook, hook_function *function);

/* What a hook answers that has nothing to call. */
int driver_missing(void);

/* Whether this hook has work to do; then driver_leave ends it. */
bool driver_enter(void);
void driver_leave(void);

bool driver_active(void);

/* Questions to the driver; 0 when it does not answer. */
int driver_capture_status(void *stream, bool per_thread); /* ABI_CAPTURE_NONE is 0 */
const void *driver_context(void);
uint64_t driver_range_bytes(uint64_t address);

/* Who else keeps something in contexts: the client library, where it is linked in. */
struct driver_tenant {
    void (*context_ended)(const void *context);
};
extern const struct driver_tenant driver_tenant __attribute__((weak));

/* A context has ended. */
void driver_context_ended(const void *context);
/* A device's primary context was retained, or released and perhaps ended. */
void driver_primary_retained(int device, const void *context);
void driver_primary_released(int device);

/* The hook of cuInit. */
int handle_init(enum hook hook, unsigned int flags);
