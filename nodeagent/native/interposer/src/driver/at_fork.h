/* Calls around each fork. Here is the function that glibc's pthread_atfork calls. musl lacks it,
 * and must still load this library into programs that have no driver. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

extern int __register_atfork(void (*before)(void), void (*parent)(void), void (*child)(void),
                             void *library) __attribute__((weak));
extern void *__dso_handle __attribute__((visibility("hidden")));

/* Has these called around each fork, until this library is unloaded. False: they never are. */
static inline bool at_fork(void (*before)(void), void (*parent)(void), void (*child)(void)) {
    return __register_atfork != NULL &&
           __register_atfork(before, parent, child, &__dso_handle) == 0;
}
