/* See order.h. */
#include "gates/order.h"

#include <stddef.h>

void tl_span_add(struct tl_span *span, const struct tl_arena *arena, const struct tl_weight *weight,
                 bool all) {
    for (uint32_t e = weight->first; e <= weight->last; e++) {
        uint32_t index = arena->stream_index[e];
        if (index == TL_NOT_STREAMED || (!all && tl_extent_is_private(arena, e))) {
            continue;
        }
        bool empty = span->lowest == span->needs;
        span->lowest = empty || index < span->lowest ? index : span->lowest;
        span->needs = empty || index >= span->needs ? index + 1 : span->needs;
    }
}

static bool reads(const struct tl_gate *gate, struct tl_span span) {
    return gate->lowest == span.lowest && gate->needs == span.needs;
}

/* The next layer from `from` on that reads this; layer_count if there is none. */
static uint32_t search(const struct tl_arena *arena, uint32_t from, struct tl_span span) {
    while (from < arena->layer_count && !reads(&arena->gates[from], span)) {
        from++;
    }
    return from;
}

static uint32_t larger(uint32_t one, uint32_t other) {
    return one > other ? one : other;
}

bool tl_order_need(const struct tl_arena *arena, struct tl_span all, struct tl_span open,
                   struct tl_cursor *cursor, struct tl_need *out) {
    uint32_t next = cursor->layer;
    while (next < arena->layer_count && arena->gates[next].lowest == arena->gates[next].needs) {
        next++; /* resident layers, never to be looked at again in this pass */
    }
    cursor->layer = next;
    const struct tl_gate *gate = NULL;
    uint32_t keeps = cursor->consumed;
    bool waits = open.lowest != open.needs;
    if (waits && open.lowest < tl_cursor_first(cursor)) {
        return false;
    }
    if (next < arena->layer_count && reads(&arena->gates[next], all)) {
        gate = &arena->gates[next];
    } else if (waits && open.needs - cursor->consumed > arena->ring_slots) {
        next = search(arena, next, all);
        if (next < arena->layer_count) {
            gate = &arena->gates[next];
        } else if (open.needs - open.lowest <= arena->ring_slots) {
            keeps = open.needs - arena->ring_slots;
        }
    }
    uint32_t releases = keeps;
    if (gate != NULL) {
        keeps = larger(keeps, gate->keeps);
        releases = larger(keeps, gate->releases);
    }
    if (waits && open.needs > keeps && open.needs - keeps > arena->ring_slots) {
        return false;
    }
    *out = (struct tl_need){.layer = gate != NULL ? next : TL_NO_LAYER,
                            .lowest = open.lowest,
                            .needs = waits ? open.needs : 0,
                            .keeps = keeps,
                            .releases = releases,
                            .streamed = waits};
    cursor->layer = gate != NULL ? next + 1 : cursor->layer;
    cursor->consumed = releases;
    return true;
}

void tl_order_find(const struct tl_arena *arena, struct tl_span all, struct tl_cursor *cursor) {
    uint32_t layer = search(arena, 0, all);
    *cursor = (struct tl_cursor){0};
    if (layer < arena->layer_count) {
        *cursor = (struct tl_cursor){.layer = layer, .consumed = arena->gates[layer].keeps};
    }
}
