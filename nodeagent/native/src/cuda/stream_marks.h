/* How far streams of the GPU have got: words in host memory that the streams themselves write, and
 * that anybody may read at any time. And which stream a call means.
 *
 * The page belongs to the process, not to a context: with its context a word loses its address for
 * the GPU, and stays readable.
 */
#ifndef TIERLINE_STREAM_MARKS_H
#define TIERLINE_STREAM_MARKS_H

#include <stdbool.h>
#include <stdint.h>

enum {
    TL_MARKS_OF_READERS = 256, /* the first of them: streams.h */
    TL_MARKS_OF_GATES = 1024,  /* up to this: drain.h; from here: launch_yields.h */
    TL_MARKS = 2048,
};

/* A stream by a handle that is never NULL, and the thread whose own default stream it is (0: no
 * thread's; only that thread can name such a stream). */
struct tl_stream_name {
    void *handle;
    uint64_t thread;
};
struct tl_stream_name tl_stream_name(void *stream, bool per_thread);
/* This thread's number, from 1 up. */
uint64_t tl_this_thread(void);

/* Makes the words addressable in the current context, unless they are. 0 or a code. */
int tl_marks_open(void);
/* A context has ended: if it was that one, they are addressable in none. */
void tl_marks_context_ended(const void *context);
/* In a fork's child. */
void tl_marks_forget(void);

uint64_t tl_mark_address(uint32_t index);
uint32_t tl_mark_seen(uint32_t index);
/* Sets a word that no stream writes, or not now; a thread that reads another one next reads it
 * later. */
void tl_mark_set(uint32_t index, uint32_t value);
/* Lets a word take a value once all that the stream was given is done. A CUresult. */
int tl_mark_write(void *handle, uint32_t index, uint32_t value);

#endif
