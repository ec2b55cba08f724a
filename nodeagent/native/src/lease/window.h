/* Careful jobs: a reader that nobody can see faults, instead of reading another layer's bytes.
 *
 * A kernel may find weights by other ways than its parameters: by a table that was made where
 * nobody looked, by distances from another weight. What lies at a consumed extent's address is
 * another layer's bytes. So a job in which a kernel is launched that no careful one has launched
 * is careful, from that launch on: of what is streamed only that is mapped which is in the ring and
 * has not been given back. It costs a wait for the GPU at each extent, once a kernel, and again
 * once a kernel after weights are new; later jobs reuse addresses and leave them mapped.
 *
 * Blind: a kernel that reads so only in a later job than those in which it was first launched, and
 * one in a graph that names streamed weights, as between its nodes nothing can be unmapped.
 *
 * Invariant: nothing is hidden but in a careful job.
 *
 * All of it with the gates' lock, but for what is said to go without.
 */
#ifndef TIERLINE_WINDOW_H
#define TIERLINE_WINDOW_H

#include "link/state.h"

/* Whether a careful job has launched this function, or no kernel is meant (NULL). Without the lock;
 * the call then has to be held back by it, or by its job, until it is at the driver. */
bool tl_window_knows(const void *function);
/* A function is about to be launched in the job that runs: careful from now on, if it is not known.
 * 0 or a code. */
int tl_window_meet(tierline_client *client, const void *function);
/* Weights are new: nothing is known of any function any more. */
void tl_window_forget(void);

/* The job's stream begins again, and the GPU has no work: nothing has arrived. 0 or a code. */
int tl_window_shut(tierline_client *client);
/* Before streamed extents below `from` are given back: what lies outside of [from, past), in the
 * stream's order, is hidden. With the arena's context current, if it is careful; 0 or a code. */
int tl_window_close(struct tl_arena *arena, uint32_t from, uint32_t past);
/* Before a call that reads [from, past): waits until they have come, and shows them. 0 or a code.
 */
int tl_window_open(struct tl_arena *arena, uint32_t from, uint32_t past);
/* Shows all, for a graph. 0 or a code. */
int tl_window_show(struct tl_arena *arena);
/* The job is over, and the GPU answered that: all is shown again. If a hidden reader was it, says
 * which kernels come in question. */
void tl_window_end(tierline_client *client, int result);

/* A kernel goes to the driver, whatever it names. Without the lock. */
void tl_window_note(const void *function);
/* The GPU answered that: says which kernels come in question, if one has read what is hidden. */
void tl_window_blame(int result);

#endif
