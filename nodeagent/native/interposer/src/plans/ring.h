/* Which extents of a graph cannot come through the ring, when its nodes run in a given order.
 *
 * Pure. Extent y cannot come while extent x, at least a ring's length before it, is still to be
 * read: if the last reader of x does not run before the first reader of y, one of the two must be
 * had otherwise. Of such pairs the extent that is in most of them goes first, again and again: few
 * extents, not always the fewest.
 */
#pragma once

#include "plans/order.h"

/* How many extents the question counts: one past the last that is read. */
uint32_t ring_extents(const struct plan_question *question);

/* Marks the extents; `is_private` has room for all. False when memory is short. */
bool ring_privates(const struct plan_question *question, const struct graph_order *order,
                   bool *is_private);
