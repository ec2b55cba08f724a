/* Clears what earlier calls left on the stack.
 *
 * A program builds a launch's parameters in structures on its stack, and does not write their
 * holes: old addresses stay there, and a launch seems to name weights that it does not read.
 * Cleared before the structures are built, holes name nothing.
 */
#include <pthread.h>
#include <stdint.h>
#include <string.h>

#include "driver/driver.h"
#include "tierline/interposer.h"

#define CLEARED_BYTES ((size_t)256 << 10)
#define SPARED_BYTES ((size_t)64 << 10) /* for what is called from here, and for signals */

/* The lowest address of this thread's stack; 0 where it cannot be had. */
static uintptr_t stack_end(void) {
    static __thread uintptr_t end;
    pthread_attr_t attributes;
    if (end == 0 && pthread_getattr_np(pthread_self(), &attributes) == 0) {
        void *lowest = NULL;
        size_t bytes = 0;
        end = pthread_attr_getstack(&attributes, &lowest, &bytes) == 0 ? (uintptr_t)lowest : 0;
        pthread_attr_destroy(&attributes);
    }
    return end;
}

__attribute__((noinline)) static void clear(void) {
    char bytes[CLEARED_BYTES];
    memset(bytes, 0, sizeof bytes);
    __asm__ volatile("" : : "r"(bytes) : "memory"); /* else nothing would need to be written */
}

TIERLINE_EXPORT void tierline_stack_clear(void) {
    uintptr_t here = (uintptr_t)__builtin_frame_address(0);
    uintptr_t end = stack_end();
    if (end != 0 && here > end && here - end > CLEARED_BYTES + SPARED_BYTES) {
        clear();
    }
}
