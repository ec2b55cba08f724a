/* When launches that read weights end, by the GPU's own clock: an event after each launch that is
 * the first to read a weight, and one before the first of them. Inside a graph, events that the
 * graph records (graphs/marks.h).
 */
#pragma once

#include "tierline/interposer.h"

bool timing_on(void);
/* Before a call that reads some weight for the first time goes to the driver; and after it. */
void timing_before(struct tierline_call *call, uint64_t launch);
void timing_after(const struct tierline_call *call);
/* The graph that is launched next records these events, which stay the caller's, after the nodes
 * with these ordinals. False when there is no room. */
bool timing_borrow(const struct tierline_call *call, const uint64_t *launches, void *const *events,
                   uint32_t count);
/* Forgets what was timed by borrowed events: they end. */
void timing_give_back(void);
/* Whether graphs are kept so that their nodes can be timed. */
bool timing_graphs(void);
/* Forgets what was timed. */
void timing_restart(void);
/* In a fork's child. */
void timing_forget(void);
