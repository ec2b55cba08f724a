/* Captures of streams that are under way, so that the driver is asked about a stream only while
 * there is one, and no context is synchronised then: that would end the capture with an error.
 *
 * Invariant: a capture counts from before it begins until the driver says that its stream is not
 * captured any more, or its stream or its context is about to go.
 */
#pragma once

#include <stdbool.h>

/* Before cuStreamBeginCapture. Answers CUDA_SUCCESS. */
int captures_begin(void *stream, bool per_thread);
/* After it; passes its result on. */
int captures_begun(int result, void *stream, bool per_thread);
/* Before cuStreamEndCapture: whether there is anything to end. */
bool captures_end(void *stream, bool per_thread);
/* After it, if there was one; passes its result on. */
int captures_ended(int result, void *stream, bool per_thread);

/* A stream is about to be destroyed. Answers CUDA_SUCCESS. */
int captures_stream_goes(void *stream, bool per_thread);
/* A context was. */
void captures_context_ended(const void *context);
/* In a fork's child. */
void captures_forget(void);

/* Whether a stream is being captured. */
bool captures_any(void);
/* Whether this one is. */
bool captures_now(void *stream, bool per_thread);
