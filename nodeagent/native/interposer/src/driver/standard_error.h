/* What Tierline tells the user: sentences on standard error. */
#pragma once

#include <stdbool.h>

/* Writes what begins with "tierline: " and ends with a newline, if descriptor 2 is still what it
 * was when this library was loaded, or what the program made it by dup2. One that closes it gets
 * its number for the next file that it opens, and our words do not belong there. At most a KiB;
 * errno is kept. */
void standard_error_say(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* The same with what is there already; a signal handler may. */
void standard_error_write(const char *line, unsigned long length);
bool standard_error_is_ours(void);
/* The program has just made descriptor 2 its standard error. */
void standard_error_is_new(void);
