/* When launches that read weights end, by the GPU's own clock: an event behind each launch that is
 * the first to read a weight, and one before the first of them.
 */
#pragma once

#include "tierline/interposer.h"

bool timing_on(void);
/* Before a call that reads some weight for the first time goes to the driver; and behind it. */
void timing_before(struct tierline_call *call, uint64_t launch);
void timing_behind(const struct tierline_call *call);
/* Forgets what was timed. */
void timing_restart(void);
/* In a fork's child. */
void timing_forget(void);
