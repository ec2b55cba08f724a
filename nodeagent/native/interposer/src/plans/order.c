/* See order.h. */
#include "plans/order.h"

#include <stdlib.h>
#include <string.h>

/* Free nodes, the first in order at the top. */
struct heap {
    const uint32_t *due;
    uint32_t *nodes;
    uint32_t count;
};

static bool before(const struct heap *heap, uint32_t one, uint32_t other) {
    uint32_t a = heap->due[one];
    uint32_t b = heap->due[other];
    return a < b || (a == b && one < other);
}

static void swap(uint32_t *one, uint32_t *other) {
    uint32_t kept = *one;
    *one = *other;
    *other = kept;
}

static void push(struct heap *heap, uint32_t node) {
    uint32_t at = heap->count++;
    heap->nodes[at] = node;
    while (at > 0 && before(heap, heap->nodes[at], heap->nodes[(at - 1) / 2])) {
        swap(&heap->nodes[at], &heap->nodes[(at - 1) / 2]);
        at = (at - 1) / 2;
    }
}

static uint32_t pop(struct heap *heap) {
    uint32_t top = heap->nodes[0];
    heap->nodes[0] = heap->nodes[--heap->count];
    uint32_t at = 0;
    for (;;) {
        uint32_t first = at;
        for (uint32_t child = 2 * at + 1; child <= 2 * at + 2; child++) {
            if (child < heap->count && before(heap, heap->nodes[child], heap->nodes[first])) {
                first = child;
            }
        }
        if (first == at) {
            return top;
        }
        swap(&heap->nodes[at], &heap->nodes[first]);
        at = first;
    }
}

static void sort_edges(const struct plan_question *q, struct graph_order *order) {
    for (uint32_t e = 0; e < q->edge_count; e++) {
        order->in_begin[q->edges[e].to + 1]++;
        order->out_begin[q->edges[e].from + 1]++;
    }
    for (uint32_t v = 0; v < q->node_count; v++) {
        order->in_begin[v + 1] += order->in_begin[v];
        order->out_begin[v + 1] += order->out_begin[v];
    }
    for (uint32_t e = 0; e < q->edge_count; e++) {
        order->in_from[order->in_begin[q->edges[e].to]++] = q->edges[e].from;
        order->out_to[order->out_begin[q->edges[e].from]++] = q->edges[e].to;
    }
    /* Each begin now stands where the next node's was. */
    memmove(order->in_begin + 1, order->in_begin, q->node_count * sizeof *order->in_begin);
    memmove(order->out_begin + 1, order->out_begin, q->node_count * sizeof *order->out_begin);
    order->in_begin[0] = 0;
    order->out_begin[0] = 0;
}

/* One order by the dues; false when the edges close a circle. */
static bool run_through(uint32_t count, struct graph_order *order, struct heap *heap,
                        uint32_t *missing) {
    for (uint32_t v = 0; v < count; v++) {
        missing[v] = order->in_begin[v + 1] - order->in_begin[v];
        if (missing[v] == 0) {
            push(heap, v);
        }
    }
    uint32_t done = 0;
    while (heap->count > 0) {
        uint32_t v = pop(heap);
        order->nodes[done++] = v;
        for (uint32_t i = order->out_begin[v]; i < order->out_begin[v + 1]; i++) {
            if (--missing[order->out_to[i]] == 0) {
                push(heap, order->out_to[i]);
            }
        }
    }
    return done == count;
}

/* The earliest extent that a node, or one after it, reads. */
static void find_dues(const struct plan_question *q, const struct graph_order *order,
                      uint32_t *due) {
    for (uint32_t i = q->node_count; i-- > 0;) {
        uint32_t v = order->nodes[i];
        uint32_t earliest = UINT32_MAX;
        for (uint32_t s = q->nodes[v].span_begin; s < q->nodes[v].span_end; s++) {
            earliest = q->spans[s].first < earliest ? q->spans[s].first : earliest;
        }
        for (uint32_t o = order->out_begin[v]; o < order->out_begin[v + 1]; o++) {
            uint32_t next_due = due[order->out_to[o]];
            earliest = next_due < earliest ? next_due : earliest;
        }
        due[v] = earliest;
    }
}

static bool is_early(const struct plan_question *q, uint32_t from, uint32_t to) {
    for (uint32_t e = 0; q->early != NULL && e < q->edge_count; e++) {
        if (q->early[e] && q->edges[e].from == from && q->edges[e].to == to) {
            return true;
        }
    }
    return false;
}

static void find_chains(const struct plan_question *q, struct graph_order *order, bool *continued) {
    for (uint32_t i = 0; i < q->node_count; i++) {
        uint32_t v = order->nodes[i];
        order->places[v] = i;
        uint32_t from = UINT32_MAX;
        for (uint32_t e = order->in_begin[v]; e < order->in_begin[v + 1]; e++) {
            from = from == UINT32_MAX && !continued[order->in_from[e]] ? order->in_from[e] : from;
        }
        if (from == UINT32_MAX) {
            order->chains[v] = order->chain_count++;
        } else {
            order->chains[v] = order->chains[from];
            continued[from] = true;
            order->early[from] = is_early(q, from, v);
        }
    }
}

bool order_nodes(const struct plan_question *question, struct graph_order *order) {
    uint32_t count = question->node_count;
    size_t room = (size_t)count + 1;
    size_t edges = (size_t)question->edge_count + 1;
    *order = (struct graph_order){.nodes = calloc(room, sizeof *order->nodes),
                                  .places = calloc(room, sizeof *order->places),
                                  .chains = calloc(room, sizeof *order->chains),
                                  .in_begin = calloc(room, sizeof *order->in_begin),
                                  .in_from = calloc(edges, sizeof *order->in_from),
                                  .out_begin = calloc(room, sizeof *order->out_begin),
                                  .out_to = calloc(edges, sizeof *order->out_to),
                                  .early = calloc(room, sizeof *order->early)};
    uint32_t *due = calloc(room, sizeof *due);
    uint32_t *missing = calloc(room, sizeof *missing);
    bool *continued = calloc(room, sizeof *continued);
    struct heap heap = {.due = due, .nodes = calloc(room, sizeof *heap.nodes)};
    bool whole = order->nodes != NULL && order->places != NULL && order->chains != NULL &&
                 order->in_begin != NULL && order->in_from != NULL && order->out_begin != NULL &&
                 order->out_to != NULL && order->early != NULL && due != NULL && missing != NULL &&
                 continued != NULL && heap.nodes != NULL;
    if (whole) {
        sort_edges(question, order);
        whole = run_through(count, order, &heap, missing);
    }
    if (whole) {
        find_dues(question, order, due);
        whole = run_through(count, order, &heap, missing);
        find_chains(question, order, continued);
    }
    free(due);
    free(missing);
    free(continued);
    free(heap.nodes);
    if (!whole) {
        order_free(order);
    }
    return whole;
}

void order_free(struct graph_order *order) {
    free(order->nodes);
    free(order->places);
    free(order->chains);
    free(order->in_begin);
    free(order->in_from);
    free(order->out_begin);
    free(order->out_to);
    free(order->early);
    *order = (struct graph_order){0};
}
