/* Where the gates of a graph go: a pure function of its shape, of what its nodes read, and of the
 * ring through which that streams.
 *
 * Extents are counted among the streamed ones of one arena, in the order in which they come.
 * `published` (how many came) and `consumed` (how many were given back) describe the stream: extent
 * x can be read from when published > x until consumed > x, and published passes x only when
 * consumed >= x + 1 - ring.
 */
#pragma once

#include "plans/shape.h"

/* A node to be added: `consumed` is written, then `published` is waited for. Where the graph may be
 * stopped its number follows, counted from 1, and what was waited for so far, to be waited for
 * again. 0: not. */
struct plan_gate {
    uint32_t write, wait;
    uint32_t stop, again;
};

struct graph_plan {
    uint32_t lowest;   /* extents below may be given back before the launch; without gates 0 */
    uint32_t needs;    /* published at the end is at least that; without gates 0 */
    uint32_t consumed; /* at the end */
    uint32_t gate_count, added_count, replaced_count, private_count;
    struct plan_gate *gates;
    struct plan_edge *added; /* gate g is node_count + g */
    uint32_t *replaced;      /* edges of the question that others stand in for */
    uint32_t *privates;      /* extents that cannot come through the ring, ascending */
};

/* NULL when memory is short or the edges close a circle. */
struct graph_plan *plan_graph(const struct plan_question *question);
void plan_free(struct graph_plan *plan);
