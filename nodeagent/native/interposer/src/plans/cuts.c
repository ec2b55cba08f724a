/* See cuts.h.
 *
 * From the last node to the first: from each the graph is followed, in its order, until a node of
 * interest cannot be reached, or one can that is a cut, after which all others then come. In a
 * chain that is the very next one. */
#include "plans/cuts.h"

#include <stdlib.h>

#include "plans/order.h"

enum { NO_INTEREST = UINT32_MAX };

struct search {
    const struct graph_order *order;
    uint32_t node_count;
    const uint32_t *ranks; /* of each node among those of interest */
    const bool *cut;
    uint32_t *reached_from; /* of each node: rank + 1 of the start of the latest search */
};

static bool is_reached(const struct search *s, uint32_t node, uint32_t stamp) {
    for (uint32_t e = s->order->in_begin[node]; e < s->order->in_begin[node + 1]; e++) {
        if (s->reached_from[s->order->in_from[e]] == stamp) {
            return true;
        }
    }
    return false;
}

static bool reaches_all(const struct search *s, uint32_t start) {
    uint32_t stamp = s->ranks[start] + 1;
    s->reached_from[start] = stamp;
    for (uint32_t i = s->order->places[start] + 1; i < s->node_count; i++) {
        uint32_t v = s->order->nodes[i];
        bool reached = is_reached(s, v, stamp);
        if (reached) {
            s->reached_from[v] = stamp;
        }
        if (s->ranks[v] != NO_INTEREST && (!reached || s->cut[s->ranks[v]])) {
            return reached;
        }
    }
    return true;
}

bool cuts_find(const struct plan_edge *edges, uint32_t edge_count, uint32_t node_count,
               const uint32_t *nodes, uint32_t count, bool *cut) {
    struct plan_node *nothing = calloc((size_t)node_count + 1, sizeof *nothing);
    uint32_t *ranks = calloc((size_t)node_count + 1, sizeof *ranks);
    uint32_t *reached_from = calloc((size_t)node_count + 1, sizeof *reached_from);
    const struct plan_question shape = {
        .node_count = node_count, .edge_count = edge_count, .nodes = nothing, .edges = edges};
    struct graph_order order;
    bool whole =
        nothing != NULL && ranks != NULL && reached_from != NULL && order_nodes(&shape, &order);
    if (whole) {
        for (uint32_t v = 0; v < node_count; v++) {
            ranks[v] = NO_INTEREST;
        }
        for (uint32_t r = 0; r < count; r++) {
            ranks[nodes[r]] = r;
            cut[r] = false;
        }
        const struct search search = {&order, node_count, ranks, cut, reached_from};
        for (uint32_t r = count; r-- > 0;) {
            cut[r] = reaches_all(&search, nodes[r]);
        }
        order_free(&order);
    }
    free(nothing);
    free(ranks);
    free(reached_from);
    return whole;
}
