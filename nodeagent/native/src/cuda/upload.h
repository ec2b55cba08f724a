/* Bytes that the library itself brings to the GPU, on a stream of its own.
 *
 * Calls that copy from memory that is not page-locked return before the bytes have arrived, and
 * while other processes work each of their pieces waits for a turn. So the memory that bytes come
 * from is page-locked where that can be, and the call waits for its stream.
 *
 * Invariant: a copy has ended when its call returns, whatever memory it reads; a call does nothing
 * but copy on that stream and wait for it, which no capture of the program's forbids.
 */
#ifndef TIERLINE_UPLOAD_H
#define TIERLINE_UPLOAD_H

#include <stdint.h>

/* Makes the stream in the current context, unless there is one. 0 or a code. */
int tl_upload_open(void);

/* Copies bytes to a device address, with its context current. By any thread. 0 or a code. */
int tl_upload(uint64_t to, const void *from, uint64_t bytes);

/* Page-locks memory from which bytes will come, instead of what it did before: another place, or
 * the same place with another generation of pages. By one thread at a time, with the stream's
 * context current; without success copies are slower. */
void tl_upload_pin(void *memory, uint64_t bytes, uint32_t generation);
/* Ends the page lock of this memory, before it is freed; of other memory it does nothing. */
void tl_upload_unpin(const void *memory);

/* A context has ended, and with it the stream, if that was made in it. */
void tl_upload_context_ended(const void *context);
/* In a fork's child. */
void tl_upload_forget(void);

#endif
