/* Streams that stand at a flag word, and calls that may wait for them.
 *
 * NVIDIA does not say which calls wait for the device. Memory mapping, page-locking, allocation,
 * new streams and module loading sometimes do, and a call that waits for a stream that stands at a
 * flag waits for the writer of that flag. With SIMCUDA_CALLS_WAIT=1 they always do here, in any
 * context of the process, so that a program whose own CPU has to write the flag hangs here, too.
 */
#pragma once

/* A stream's work begins, or ceases, to stand at a flag. */
void standing_begin(void);
void standing_end(void);

/* Returns when none does, or at once without SIMCUDA_CALLS_WAIT. Called without locks. */
void standing_wait(void);
