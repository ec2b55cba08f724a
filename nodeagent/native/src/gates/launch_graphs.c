/* See launch_graphs.h. */
#include "gates/launch_graphs.h"

#include "cuda/cuda.h"
#include "cuda/streams.h"
#include "gates/flow.h"
#include "gates/launch_copies.h"
#include "gates/order.h"
#include "gates/watch.h"
#include "lease/launch_lease.h"
#include "lease/launch_state.h"
#include "lease/launch_yields.h"
#include "link/state.h"

#define ENDED_WORD 0x7fffffffU /* at least every count, as waits compare */

static struct tl_span span_of(uint32_t index, uint64_t generation, const uint32_t *weights,
                              uint32_t count) {
    const struct tl_arena *arena = &tl_gates.client->arenas[index];
    struct tl_span span = {0};
    for (uint32_t i = 0; i < count; i++) {
        const struct tl_watched *watched = tl_watch_find(generation, weights[i]);
        if (watched != NULL && watched->arena == index) {
            tl_span_add(&span, arena, &arena->on_device.weights[watched->weight], true);
        }
    }
    return span;
}

static bool graph_arena(uint64_t generation, const uint32_t *weights, uint32_t count,
                        uint32_t *arena) {
    for (uint32_t i = 0; i < count; i++) {
        const struct tl_watched *watched = tl_watch_find(generation, weights[i]);
        if (watched != NULL) {
            *arena = watched->arena;
            return true;
        }
    }
    return false;
}

static bool graph_words(uint32_t index, uint64_t *published, uint64_t *consumed) {
    const struct tl_arena *arena = &tl_gates.client->arenas[index];
    *published = arena->on_device.published;
    *consumed = arena->on_device.consumed;
    return tl_gates_sealed(index);
}

static bool graph_stops(uint64_t *arrived, uint64_t *permit) {
    return tl_yields_in_graphs(tl_gates.client, arrived, permit);
}

static uint32_t graph_ring(uint32_t index) {
    return tl_gates.client->arenas[index].ring_slots;
}

static bool graph_span(uint32_t index, uint64_t generation, uint32_t weight, uint32_t *first,
                       uint32_t *past) {
    const struct tl_watched *watched = tl_watch_find(generation, weight);
    struct tl_span span = span_of(index, generation, &weight, 1);
    *first = span.lowest;
    *past = span.needs;
    return watched != NULL && watched->arena == index;
}

static void graph_start(uint32_t index, uint64_t generation, const uint32_t *weights,
                        uint32_t count, struct tl_cursor *cursor) {
    tl_order_find(&tl_gates.client->arenas[index], span_of(index, generation, weights, count),
                  cursor);
}

static bool graph_need(uint32_t index, uint64_t generation, const uint32_t *weights, uint32_t count,
                       struct tl_cursor *cursor, struct tl_need *out) {
    struct tl_span span = span_of(index, generation, weights, count);
    return tl_order_need(&tl_gates.client->arenas[index], span, span, cursor, out);
}

/* A graph that streams nothing: all it reads is private, and its waits are over before they begin.
 */
static int launch_aside(tierline_client *client, const struct tl_graph_plan *plan) {
    struct tl_arena *arena = &client->arenas[plan->arena];
    int result =
        tl_gates_copy(client, plan->arena, plan->generation, plan->weights, plan->weight_count);
    if (result == ABI_SUCCESS && plan->needs > 0) {
        result = tl_cuda_synchronise(); /* others may wait for the stream's own progress */
        if (result == ABI_SUCCESS) {
            tierline_word_publish(&arena->control->published, ENDED_WORD);
        }
    }
    return result;
}

static int launch_plan(tierline_client *client, const struct tl_graph_plan *plan, void *handle,
                       bool per_thread) {
    struct tl_arena *arena = &client->arenas[plan->arena];
    bool streamed = plan->needs > 0;
    if (streamed && tl_gates_stream(plan->arena) &&
        plan->lowest < tl_cursor_first(&tl_gates.cursor) &&
        tl_gates_go_to(client, plan->arena, (struct tl_cursor){0}) != 0) {
        return launch_aside(client, plan);
    }
    if (!tl_gates_stream(plan->arena)) {
        return launch_aside(client, plan);
    }
    int result =
        tl_gates_copy(client, plan->arena, plan->generation, plan->loose, plan->loose_count);
    if (result != ABI_SUCCESS || !streamed) {
        return result;
    }
    struct tl_stream *stream = tl_stream_of(handle, per_thread);
    if (stream == NULL) {
        return ABI_CAPTURE_UNSUPPORTED;
    }
    if (!tl_gates_announce(plan->needs)) {
        return launch_aside(client, plan);
    }
    result = tl_gates_give_back(stream, arena, plan->consumed_before);
    if (result == ABI_SUCCESS && plan->consumed > 0) {
        result = tl_stream_join(stream, plan->consumed);
    }
    if (result == ABI_SUCCESS) {
        tl_stream_reads(stream, plan->lowest);
        tl_gates.at_driver = stream;
        uint32_t consumed =
            plan->consumed > tl_gates.cursor.consumed ? plan->consumed : tl_gates.cursor.consumed;
        tl_gates.pass = (struct tl_pass){.stream = stream,
                                         .waited = plan->needs,
                                         .cursor = {.layer = plan->layer,
                                                    .consumed = consumed,
                                                    .begins = tl_gates.cursor.begins}};
    }
    return result;
}

void tl_graph_launched(void) {
    if (tl_gates.pass.stream != NULL) {
        tl_stream_waited(tl_gates.pass.stream, tl_gates.pass.waited);
        tl_gates.cursor = tl_gates.pass.cursor;
    }
}

/* A graph that reads several arenas streams the one of which it waits for most. */
static void go_to_longest(const struct tl_graph_plan *plans, uint32_t count) {
    const struct tl_graph_plan *longest = &plans[0];
    for (uint32_t i = 1; i < count; i++) {
        longest = plans[i].needs > longest->needs ? &plans[i] : longest;
    }
    if (longest->needs > 0 && longest->arena != tl_gates.arena &&
        !atomic_load(&tl_gates.orphaned)) {
        tl_gates_go_to(tl_gates.client, longest->arena,
                       (struct tl_cursor){0}); /* else it reads copies */
    }
}

static int graph_launch(const struct tl_graph_plan *plans, uint32_t count, void *stream,
                        bool per_thread) {
    int result = ABI_SUCCESS;
    if (tl_yields_may(tl_gates.client)) {
        struct tl_stream *on = tl_stream_of(stream, per_thread);
        if (on == NULL) {
            return ABI_CAPTURE_UNSUPPORTED;
        }
        tl_yields_enter(tl_gates.client, on);
        result = tl_yields_gate(tl_gates.client, on, true);
    }
    if (count > 0 && result == ABI_SUCCESS) {
        go_to_longest(plans, count);
    }
    for (uint32_t i = 0; i < count && result == ABI_SUCCESS; i++) {
        result = launch_plan(tl_gates.client, &plans[i], stream, per_thread);
    }
    return result;
}

const struct tl_graph_gates tl_launch_graphs = {.arena = graph_arena,
                                                .words = graph_words,
                                                .stops = graph_stops,
                                                .ring = graph_ring,
                                                .span = graph_span,
                                                .start = graph_start,
                                                .need = graph_need,
                                                .launch = graph_launch};
