/* The functions that come after the hooks, and questions to the driver. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "driver/hooks.h"

#define TIERLINE_EXPORT __attribute__((visibility("default")))

/* The next function of this name: that of an interposer after this one, or that of the driver (of
 * NVML, ...) itself. NULL when it is not loaded, or has no such function. Never one of this
 * library. */
hook_function *driver_next(int function);

/* The same, typed: DRIVER(HOOK, cuMemMap) of a hooked function, DRIVER(USED, cuCtxGetCurrent). */
#define DRIVER(table, name) ((name##_function *)driver_next(table##_##name))

/* Notes a function that the driver handed out before anyone asked for it. */
void driver_learn(enum hook hook, hook_function *function);

/* What a hook answers that has nothing to call. */
int driver_missing(void);

/* Questions to the driver; 0 when it does not answer. */
int driver_capture_status(void *stream, bool per_thread); /* ABI_CAPTURE_NONE is 0 */
const void *driver_context(void);
uint64_t driver_range_bytes(uint64_t address);
