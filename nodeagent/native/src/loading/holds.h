/* Weights that the kernel reads or writes for the program.
 *
 * The kernel faults for nobody: a transfer whose buffer is not there ends with EFAULT, or half
 * done. So before a transfer its extents get right bytes in private memory, and a held extent keeps
 * that memory, whatever jobs begin and end meanwhile, until the transfer is over.
 */
#ifndef TIERLINE_HOLDS_H
#define TIERLINE_HOLDS_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/uio.h>

/* Holds what weights lie in these buffers; if some cannot be had, says so. `writing`: the kernel
 * writes to them. False if there are none. Neither changes errno. */
bool tl_holds_take(const struct iovec *parts, size_t count, bool writing);
void tl_holds_release(const struct iovec *parts, size_t count);

#endif
