/* Where a graph's time can be cut: a pure function of its shape.
 *
 * A node is a cut among those of interest when no later one of them can begin before it is through:
 * each can be reached from it. In a chain all are cuts; of nodes on branches side by side only the
 * last one before the branches meet again may be, so that what runs side by side is one piece.
 */
#pragma once

#include "plans/shape.h"

/* `nodes` are of interest, each once, in the order that plans/order.h gives. The last one is a cut.
 * False when memory is short or the edges close a circle. */
bool cuts_find(const struct plan_edge *edges, uint32_t edge_count, uint32_t node_count,
               const uint32_t *nodes, uint32_t count, bool *cut);
