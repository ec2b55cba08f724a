/* An order in which a graph's nodes may run, and its edges by node.
 *
 * Pure. Among nodes that are free, the one goes first after which the earliest extent is read, and
 * among equals the one that was created first.
 */
#pragma once

#include "plans/shape.h"

struct graph_order {
    uint32_t *nodes;              /* in order */
    uint32_t *places;             /* of each node */
    uint32_t *chains;             /* nodes of one chain follow each other along edges */
    uint32_t *in_begin, *in_from; /* of node v: in_from[in_begin[v]] up to [in_begin[v + 1]] */
    uint32_t *out_begin, *out_to;
    bool *early; /* of each node: the next one of its chain may begin before it is through */
    uint32_t chain_count;
};

/* False when memory is short or the edges close a circle. */
bool order_nodes(const struct plan_question *question, struct graph_order *order);
void order_free(struct graph_order *order);
