/* See standard_error.h. */
#include "driver/standard_error.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "driver/at_fork.h"
#include "tierline/interposer.h"

#define LINE_BYTES 1024

/* Which file descriptor 2 is; inode 0: none. Written before there are threads, or by one that
 * exchanges standard error under the others anyway. */
static dev_t device;
static ino_t inode;

/* The process that this is known of: a child by vfork, as which Python starts programs, exchanges
 * its own standard error in the memory of its parent. */
static pid_t owner;

static void own(void) {
    owner = getpid();
}

__attribute__((constructor)) static void begin(void) {
    own();
    at_fork(NULL, NULL, own);
    standard_error_is_new();
}

void standard_error_is_new(void) {
    int kept = errno;
    if (getpid() != owner) {
        return;
    }
    struct stat found;
    bool open = fstat(STDERR_FILENO, &found) == 0;
    device = open ? found.st_dev : 0;
    inode = open ? found.st_ino : 0;
    errno = kept;
}

bool standard_error_is_ours(void) {
    int kept = errno;
    struct stat found;
    bool ours = inode != 0 && fstat(STDERR_FILENO, &found) == 0 && found.st_dev == device &&
                found.st_ino == inode;
    errno = kept;
    return ours;
}

void standard_error_write(const char *line, unsigned long length) {
    int kept = errno;
    if (standard_error_is_ours() && write(STDERR_FILENO, line, length) < 0) {
        errno = kept; /* nobody listens */
    }
    errno = kept;
}

void standard_error_say(const char *format, ...) {
    char line[LINE_BYTES];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    if (length > 0) {
        unsigned long most = sizeof line - 1;
        standard_error_write(line, (unsigned long)length < most ? (unsigned long)length : most);
    }
}

/* For the plugin, which speaks by Python's standard error. */
__attribute__((visibility("default"))) int tierline_standard_error_is_ours(void) {
    return standard_error_is_ours();
}
