/* The learned order of an arena's weights: what a call needs from the stream, and gives back.
 *
 * Pure questions on a sealed arena; no lock, no driver, no state but the cursor.
 *
 * A call is matched to the next learned layer by the streamed extents that it reads. If it is not
 * the next one it is judged by those extents alone: while they can be in the ring together with
 * what has not been given back, nothing is given back and the cursor stays; else the order is
 * searched ahead for the layer, and what lies between is skipped.
 *
 * Invariant: what is answered never waits for more than `ring_slots` past what was given back
 * before, so a wait depends only on calls that went to the driver earlier. That is why neither
 * other streams nor the driver's own queues can make it a deadlock.
 */
#ifndef TIERLINE_ORDER_H
#define TIERLINE_ORDER_H

#include "arena/arena.h"
#include "launches/graph_gate.h"

/* Streamed extents [lowest, needs), in counts; empty if they are equal. */
struct tl_span {
    uint32_t lowest;
    uint32_t needs;
};

/* Adds a weight's streamed extents; those with a private copy only if `all`. */
void tl_span_add(struct tl_span *span, const struct tl_arena *arena, const struct tl_weight *weight,
                 bool all);

/* `all` is what the call reads, `open` the part without private copies. False: not from here. */
bool tl_order_need(const struct tl_arena *arena, struct tl_span all, struct tl_span open,
                   struct tl_cursor *cursor, struct tl_need *out);

/* The place of the first layer that reads exactly this; the beginning if there is none. */
void tl_order_find(const struct tl_arena *arena, struct tl_span all, struct tl_cursor *cursor);

#endif
