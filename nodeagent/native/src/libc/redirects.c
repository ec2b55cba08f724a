/* dup2 and dup3, as programs find them where this library is preloaded: the calls by which one says
 * what its standard error is from now on, and where our sentences go as well
 * (driver/standard_error.h). Sanitized builds leave this file out, as they do signals.c. */
#include "driver/standard_error.h"
#include "libc/around.h"

#include <unistd.h>

static int followed(int result) {
    if (result == STDERR_FILENO) {
        standard_error_is_new();
    }
    return result;
}

/* Parameters have names of ours.
 * NOLINTBEGIN(readability-inconsistent-declaration-parameter-name) */
AROUND(int, dup2, (int from, int to), return followed(next(from, to));)
AROUND(int, dup3, (int from, int to, int flags), return followed(next(from, to, flags));)
/* NOLINTEND(readability-inconsistent-declaration-parameter-name) */
