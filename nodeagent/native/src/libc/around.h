/* How a function of the C library's is taken: this library's stands in front, and calls the next.
 */
#ifndef TIERLINE_AROUND_H
#define TIERLINE_AROUND_H

#include "driver/intercept.h"
#include "tierline/tierline.h"

#include <dlfcn.h>
#include <errno.h>
#include <stddef.h>

/* The dlsym that comes next, not the last: finding that one allocates. */
static inline void tl_around_find(const char *name, void **next) {
    intercept_dlsym *look = intercept_next();
    __atomic_store_n(next, look == NULL ? NULL : look(RTLD_NEXT, name), __ATOMIC_RELAXED);
}

/* A function of this library's, which is `...`: what that calls `next` is the next one. It is found
 * when this library is loaded, before any thread or fork, or by a call that is made earlier. */
#define AROUND(result, name, parameters, ...)                                                      \
    typedef result name##_call parameters;                                                         \
    static void *next_##name;                                                                      \
    __attribute__((constructor)) static void find_##name(void) {                                   \
        tl_around_find(#name, &next_##name);                                                       \
    }                                                                                              \
    TIERLINE_API result name parameters {                                                          \
        if (__atomic_load_n(&next_##name, __ATOMIC_RELAXED) == NULL) {                             \
            find_##name();                                                                         \
        }                                                                                          \
        name##_call *next = (name##_call *)__atomic_load_n(&next_##name, __ATOMIC_RELAXED);        \
        if (next == NULL) {                                                                        \
            errno = ENOSYS;                                                                        \
            return (result)-1;                                                                     \
        }                                                                                          \
        __VA_ARGS__                                                                                \
    }

#endif
