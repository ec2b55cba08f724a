/* See ring.h. */
#include "plans/ring.h"

#include <stdlib.h>

enum { UNREAD = UINT32_MAX };

/* Places in the order. */
struct reading {
    uint32_t first, last;
};

uint32_t ring_extents(const struct plan_question *question) {
    uint32_t count = 0;
    for (uint32_t v = 0; v < question->node_count; v++) {
        for (uint32_t s = question->nodes[v].span_begin; s < question->nodes[v].span_end; s++) {
            count = question->spans[s].past > count ? question->spans[s].past : count;
        }
    }
    return count;
}

static void find_readings(const struct plan_question *q, const struct graph_order *order,
                          struct reading *readings, uint32_t extents) {
    for (uint32_t x = 0; x < extents; x++) {
        readings[x] = (struct reading){UNREAD, 0};
    }
    for (uint32_t i = 0; i < q->node_count; i++) {
        const struct plan_node *node = &q->nodes[order->nodes[i]];
        for (uint32_t s = node->span_begin; s < node->span_end; s++) {
            for (uint32_t x = q->spans[s].first; x < q->spans[s].past; x++) {
                readings[x].first = readings[x].first == UNREAD ? i : readings[x].first;
                readings[x].last = i;
            }
        }
    }
}

/* Whether the two cannot both come through the ring; x < y. */
static bool clash(const struct reading *readings, uint32_t ring, uint32_t x, uint32_t y) {
    return y - x >= ring && readings[x].first != UNREAD && readings[y].first != UNREAD &&
           readings[x].last >= readings[y].first;
}

/* The usual answer, without looking at pairs: no extent is still to be read a ring's length before
 * one that is due. `earliest[i]` is then the earliest extent still to be read from place i on. */
static bool any_clash(const struct reading *readings, uint32_t ring, uint32_t extents,
                      uint32_t *earliest, uint32_t places) {
    for (uint32_t i = 0; i < places; i++) {
        earliest[i] = UINT32_MAX;
    }
    for (uint32_t x = extents; x-- > 0;) {
        if (readings[x].first != UNREAD) {
            earliest[readings[x].last] = x;
        }
    }
    for (uint32_t i = places; i-- > 1;) {
        earliest[i - 1] = earliest[i] < earliest[i - 1] ? earliest[i] : earliest[i - 1];
    }
    for (uint32_t y = ring; y < extents; y++) {
        if (readings[y].first != UNREAD && earliest[readings[y].first] <= y - ring) {
            return true;
        }
    }
    return false;
}

static void count_clashes(const struct reading *readings, uint32_t ring, uint32_t extents,
                          uint32_t *clashes) {
    for (uint32_t x = 0; x < extents; x++) {
        for (uint32_t y = x + ring; y < extents; y++) {
            bool pair = clash(readings, ring, x, y);
            clashes[x] += pair;
            clashes[y] += pair;
        }
    }
}

static void take_out(const struct reading *readings, uint32_t ring, uint32_t extents,
                     uint32_t *clashes, bool *is_private) {
    for (;;) {
        uint32_t worst = 0;
        for (uint32_t x = 1; x < extents; x++) {
            worst = clashes[x] > clashes[worst] ? x : worst;
        }
        if (clashes[worst] == 0) {
            return;
        }
        is_private[worst] = true;
        clashes[worst] = 0;
        for (uint32_t x = 0; x < extents; x++) {
            bool pair = !is_private[x] && (x < worst ? clash(readings, ring, x, worst)
                                                     : clash(readings, ring, worst, x));
            clashes[x] -= pair;
        }
    }
}

bool ring_privates(const struct plan_question *question, const struct graph_order *order,
                   bool *is_private) {
    uint32_t extents = ring_extents(question);
    struct reading *readings = calloc((size_t)extents + 1, sizeof *readings);
    uint32_t *clashes = calloc((size_t)extents + 1, sizeof *clashes);
    uint32_t *earliest = calloc((size_t)question->node_count + 1, sizeof *earliest);
    bool whole = readings != NULL && clashes != NULL && earliest != NULL;
    if (whole) {
        find_readings(question, order, readings, extents);
        if (any_clash(readings, question->ring, extents, earliest, question->node_count)) {
            count_clashes(readings, question->ring, extents, clashes);
            take_out(readings, question->ring, extents, clashes, is_private);
        }
    }
    free(readings);
    free(clashes);
    free(earliest);
    return whole;
}
