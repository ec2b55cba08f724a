/* See error.h. Only failing calls write here: the fault handler's normal path never touches
 * thread-local memory, whose first use may allocate. */
#include "wire/error.h"

#include "tierline/tierline.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static _Thread_local char last_error[TL_SENTENCE_BYTES];

int tl_fail(int code, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(last_error, sizeof last_error, format, arguments);
    va_end(arguments);
    return code;
}

int tl_fail_errno(int code, const char *format, ...) {
    int cause = errno;
    va_list arguments;
    va_start(arguments, format);
    int used = vsnprintf(last_error, sizeof last_error, format, arguments);
    va_end(arguments);
    if (used >= 0 && (size_t)used < sizeof last_error) {
        snprintf(last_error + used, sizeof last_error - (size_t)used, ": %s", strerror(cause));
    }
    return code;
}

const char *tierline_last_error(void) {
    return last_error;
}
