/* Where a job on a GPU stands when it gives the device away.
 *
 * A task whose jobs may be preempted (TIERLINE_TERMS_PREEMPTIBLE) has a gate before each call that
 * names weights, and before each graph that does. The gates of a job are numbered. One is three
 * operations of the stream, with no CPU in it: write its number to `arrived`, wait until `permit`
 * has reached it, wait again for the extents that the stream has waited for. Nobody asks: `permit`
 * is as large as it can be.
 *
 * To stop the GPU, the monitor sets `permit` to what it reads in `arrived`, and reads that again.
 * If it has not changed, the next gate wrote its number after `permit` was set, so it finds it set
 * (a GPU's read does not pass its own writes to host memory): the GPU will stand at that gate, and
 * it stands there once `arrived` says so. If it has changed, the monitor tries with the new number.
 * Then all that was issued before that gate is done and nothing after it has begun: what is
 * consumed is known, and whatever becomes of the ring, the third operation waits for it again.
 * Calls go on to the driver until the GPU stands, and wait on the CPU until it goes on.
 *
 * The nodes of a graph cannot change their numbers from launch to launch. So the gates in a graph
 * (plans/plan.h) have words of their own and count from 1 in each launch, before which a gate of
 * the stream sets their `arrived` to 0. The stream's gates are stopped first: until the GPU stands,
 * at most the rest of one launch runs, and in that its numbers only grow.
 *
 * All this holds for one stream. Once a job names weights on another one, it keeps the device to
 * its end; so does a graph with branches to the graph's.
 *
 * Invariant: while YIELD is under way, no work of this process that reads weights of its job's
 * arena runs on the GPU, and none begins.
 */
#ifndef TIERLINE_LAUNCH_YIELDS_H
#define TIERLINE_LAUNCH_YIELDS_H

#include "cuda/streams.h"
#include "link/state.h"

/* Whether this task's jobs have gates. */
bool tl_yields_may(const tierline_client *client);
/* The words of the gates in graphs; false: they have none. */
bool tl_yields_in_graphs(const tierline_client *client, uint64_t *arrived, uint64_t *permit);

/* With the gates' lock. A job begins: it has no work on the GPU yet. */
void tl_yields_begin(tierline_client *client, uint64_t job);
/* With the gates' lock: before anything that a call which names weights, or a graph, puts on the
 * stream. On a second stream it returns when the job has the device, which it keeps from then on:
 * what that stream had waited for earlier would be lost with the ring. */
void tl_yields_enter(tierline_client *client, const struct tl_stream *stream);
/* With the gates' lock: after that, before the call or the graph goes to the driver. Returns a
 * CUresult. */
int tl_yields_gate(tierline_client *client, const struct tl_stream *stream, bool graph);
/* Whether calls have to wait until the job goes on. */
bool tl_yields_standing(void);

/* The monitor's: gives the device away if the agent asks for it, and returns when the job has it
 * again. True: the GPU has not got to the gate in that time; to be called again soon. */
bool tl_yields_heed(tierline_client *client, uint64_t time_ns);
/* Sleeps until the agent asks, or the time is over. False: not at all, as it asks already, or never
 * will. */
bool tl_yields_listen(tierline_client *client, uint64_t time_ns);

/* In a fork's child. */
void tl_yields_forget(void);

#endif
