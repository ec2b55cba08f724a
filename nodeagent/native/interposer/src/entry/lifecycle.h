/* When hooks do more than call the next function, and what ends with a context or a fork.
 *
 * A process is active from its first cuInit that succeeds until it forks; the child is not active
 * (CUDA does not work there either). A hook inside a hook, because the driver or a gate calls a
 * hooked function, does nothing but call the next one.
 */
#pragma once

#include <stdbool.h>

#include "driver/hooks.h"

/* Whether this hook has work to do; then hook_leave ends it. */
bool hook_enter(void);
void hook_leave(void);

bool lifecycle_active(void);

/* What else keeps something in contexts: the client library, where it is linked in. */
struct lifecycle_tenant {
    void (*context_ended)(const void *context);
};
extern const struct lifecycle_tenant lifecycle_tenant __attribute__((weak));

/* A context has ended. */
void lifecycle_context_ended(const void *context);
/* A device's primary context was retained, or released and perhaps ended. */
void lifecycle_primary_retained(int device, const void *context);
void lifecycle_primary_released(int device);

/* The hook of cuInit. */
int handle_init(enum hook hook, unsigned int flags);
