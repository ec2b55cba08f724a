/* Careful jobs: a reader that nobody can see faults, instead of reading another weight's bytes.
 *
 * A kernel may find weights by other ways than its parameters: by a table that was made where
 * nobody looked, by distances from another weight, kept from before the weights moved. What lies
 * there is another weight's bytes, or will be in another job. So a job in which a kernel is
 * launched that no careful one has launched is careful, from that launch on. It costs a wait for
 * the GPU at each call that names other weights, once a kernel, and again once a kernel after
 * weights are new; later jobs leave everything mapped.
 *
 * Invariant: in a careful job a kernel that names weights begins when, of all arenas, those extents
 * are mapped in which these weights lie, and private copies; one that names none, when those are
 * that the latest call has named (the next one that names weights gives them back, so they are
 * there in each job). And nothing is hidden but in a careful job.
 *
 * Blind: what lies in one extent with a weight that is named; private copies; a kernel that reads
 * so only in a later job than those in which it was first launched; the nodes of a graph, which may
 * read whatever one of them names.
 *
 * All of it with the gates' lock, but for what is said to go without.
 */
#ifndef TIERLINE_WINDOW_H
#define TIERLINE_WINDOW_H

#include "link/state.h"

/* Whether a careful job has launched this function, or no kernel is meant (NULL). Without the lock;
 * the call then has to be held back by it, or by its job, until it is at the driver. */
bool tl_window_knows(const void *function);
/* A call comes that names weights: what the latest one has named counts no more. */
void tl_window_turn(void);
/* It names this one. 0 or a code. */
int tl_window_name(uint32_t arena, const struct tl_weight *weight);
/* A function, or something that is none (NULL), is about to be launched in the job that runs, which
 * is careful from now on if it is not known. Hides what is not named. 0 or a code. */
int tl_window_meet(tierline_client *client, const void *function);
/* Weights are new: nothing is known of any function any more. */
void tl_window_forget(void);

/* The program has had the job's stream begin again: nothing is named, nothing has arrived. 0 or a
 * code. */
int tl_window_shut(tierline_client *client);
/* Before a call that goes with an arena's stream: waits until `past` of its extents have come, if
 * the job is careful. */
void tl_window_wait(struct tl_arena *arena, uint32_t past);
/* Shows what is named, before the call that reads it. 0 or a code. */
int tl_window_show(tierline_client *client);
/* The job is over, and the GPU answered that: all is shown again. If a hidden reader was it, says
 * which kernels come in question. */
void tl_window_end(tierline_client *client, int result);

/* A kernel goes to the driver, whatever it names. Without the lock. */
void tl_window_note(const void *function);
/* The GPU answered that: says which kernels come in question, if one has read what is hidden. */
void tl_window_blame(int result);

#endif
