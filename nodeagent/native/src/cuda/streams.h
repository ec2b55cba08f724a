/* The streams of this process that read streamed weights, and the order among them.
 *
 * `consumed` may be written only after all work that reads what it gives back, whatever stream that
 * is on, and its writes must not overtake each other. So before a stream writes it, it waits for
 * each other stream that has read below the new value since the last write, and for the stream that
 * wrote last. It waits on marks (stream_marks.h), not on events: a stream that waits for the event
 * of a stream that stands at a flag keeps its process's time slice busy.
 *
 * All calls are made under the gates' lock, those that take a stream with its context current.
 */
#ifndef TIERLINE_STREAMS_H
#define TIERLINE_STREAMS_H

#include <stdbool.h>
#include <stdint.h>

struct tl_stream;

/* The entry of a stream; NULL is the default stream. NULL itself if there is no room, and none can
 * be made because a stream is being captured. */
struct tl_stream *tl_stream_of(void *stream, bool per_thread);

/* A new pass: nothing was waited for, nothing was read. For when all work is over. */
void tl_streams_restart(void);

/* Waits on the GPU until the word at `published` is at least `value`, unless this stream has. A
 * CUresult. */
int tl_stream_wait(struct tl_stream *stream, uint64_t published, uint32_t value);
/* A gate at which the stream can be held: it writes `number` to the word at `arrived`, waits until
 * the one at `permit` is at least that, writes 0 to the one at `reset` unless that is 0, and waits
 * again for what it has waited for. A CUresult. */
struct tl_stop {
    uint64_t arrived, permit, reset, published;
    uint32_t number;
};
int tl_stream_stop(const struct tl_stream *stream, const struct tl_stop *stop);
/* The stream will have waited for this by itself: a graph on it does. */
void tl_stream_waited(struct tl_stream *stream, uint32_t value);

/* Notes that work on the stream reads streamed extents from `lowest` on. */
void tl_stream_reads(struct tl_stream *stream, uint32_t lowest);

/* After work was issued to the stream. A CUresult. */
int tl_stream_after(struct tl_stream *stream);

/* Orders the stream after all others that read below `value`, and after the last writer; it is the
 * last writer from now on. A CUresult. */
int tl_stream_join(struct tl_stream *stream, uint32_t value);
/* The same, then writes the value to the word at `consumed`. */
int tl_stream_give_back(struct tl_stream *stream, uint64_t consumed, uint32_t value);

/* A stream is about to end, or to be captured: what it reads is marked on it now. */
void tl_stream_leave(void *stream, bool per_thread);

/* Whether all that was issued to these streams is done. */
bool tl_streams_idle(void);

/* A context has ended, and its streams with it. */
void tl_streams_context_ended(const void *context);
/* In a fork's child. */
void tl_streams_forget(void);

#endif
