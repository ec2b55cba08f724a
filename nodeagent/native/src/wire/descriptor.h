/* A descriptor of this library in a process that is not its own.
 *
 * A program may close every descriptor that it finds, as daemons do, and open files of its own,
 * which get the numbers. So what is kept open is told by its file, not by its number alone.
 *
 * Invariant: a number is read, written, passed or closed only while it leads to the file that was
 * noted. Between the look and the use another thread may still close it: that is a microsecond, and
 * the calls on a socket refuse what is none.
 */
#ifndef TIERLINE_DESCRIPTOR_H
#define TIERLINE_DESCRIPTOR_H

#include <stdbool.h>
#include <sys/types.h>

/* Why something is lost whose descriptor the program has closed. */
#define TL_CLOSED_BY_PROGRAM "the program closed descriptors that Tierline had opened"

struct tl_descriptor {
    int number; /* -1: none */
    dev_t device;
    ino_t inode;
};

#define TL_NO_DESCRIPTOR ((struct tl_descriptor){.number = -1})

/* Takes over a number that was opened just now, or -1. */
struct tl_descriptor tl_descriptor_of(int number);
/* Whether the number still leads to what was opened. */
bool tl_descriptor_is_ours(const struct tl_descriptor *descriptor);
/* Closes it if it is ours, and forgets it. */
void tl_descriptor_close(struct tl_descriptor *descriptor);

#endif
