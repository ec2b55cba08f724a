/* A graph as the planner of its gates sees it: nodes, edges, and the extents that nodes read. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* Extents [first, past). */
struct plan_span {
    uint32_t first, past;
};

struct plan_node {
    uint32_t span_begin, span_end; /* into the question's spans: what it reads */
    uint32_t releases; /* what is given back, by the order learned, once it is through */
};

struct plan_edge {
    uint32_t from, to;
};

struct plan_question {
    uint32_t node_count, edge_count;
    uint32_t ring; /* slots, at least 1 */
    const struct plan_node *nodes;
    const struct plan_span *spans;
    const struct plan_edge *edges; /* no circle */
    const bool
        *early; /* of each edge: its end may begin before its origin is through; NULL: none */
    const bool *stops; /* of each node: the graph may be stopped before it; NULL: nowhere */
};
