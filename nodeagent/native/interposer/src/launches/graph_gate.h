/* Between the gates at launches and the graphs: what a graph's nodes must wait for and give back,
 * and what must be true before a graph is launched.
 *
 * Streamed extents of an arena are counted in their order. Two words that the GPU reads and writes
 * describe a pass over them: `published` (so many are in place) and `consumed` (so many may be
 * overwritten). All figures here are absolute counts of one pass; they hold in every job, because
 * both words are zeroed before it.
 *
 * How a graph is extended, arena by arena (plans/plan.h): from the extents of each node's weights
 * (`span`) and the `ring` follows what the ring can never hold in the graph's own order: weights
 * that lie there are `loose`. Then `start` with the first node that names weights of it, and `need`
 * node by node in an order in which the graph may run. Before a node published >= needs is waited
 * for; after it, and after all earlier nodes that read below, `consumed` becomes `releases`, and
 * where the graph could not go on otherwise more, up to the first extent that it has still to read.
 * Where `need` answers false, for want of a place in the order, the extents alone decide.
 * Writes to `consumed` are chained, so that the word only grows, and each is more than the plan's
 * `consumed_before`.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* How far a sequence of calls has come along the learned order. */
struct tl_cursor {
    uint32_t layer;    /* the learned layer that should come next */
    uint32_t consumed; /* what has been given back */
    uint32_t begins;   /* where the stream began: nothing below is in place, whatever is consumed */
};

/* The first streamed extent that may still be read with the stream. */
static inline uint32_t tl_cursor_first(const struct tl_cursor *cursor) {
    return cursor->begins > cursor->consumed ? cursor->begins : cursor->consumed;
}

#define TL_NO_LAYER UINT32_MAX

struct tl_need {
    uint32_t layer;    /* the learned layer that it is, or TL_NO_LAYER */
    uint32_t lowest;   /* the first streamed extent that it reads */
    uint32_t needs;    /* `published` must have reached this: past the last one */
    uint32_t keeps;    /* `consumed` must have reached this before it waits */
    uint32_t releases; /* after it `consumed` can become this; never less than keeps */
    bool streamed;     /* it reads streamed extents; else nothing above matters */
};

/* One arena of one graph. */
struct tl_graph_plan {
    uint32_t arena;
    uint64_t generation; /* observer_generation() when its weights were found */
    const uint32_t *weights;
    uint32_t weight_count; /* all that any node names */
    const uint32_t *loose;
    uint32_t loose_count;     /* those for which no wait of the graph stands: out of order in it, or
                                 named by parameters that were changed since */
    uint32_t lowest;          /* the least of its nodes' `lowest` */
    uint32_t needs;           /* the most that it waits for; 0: it waits for nothing */
    uint32_t consumed_before; /* its waits rely on this having been given back; at most `lowest` */
    uint32_t consumed;        /* what it writes last; 0: it writes nothing */
    uint32_t layer;           /* the cursor after its last node */
};

/* What the gates answer. All of it is safe from any thread that holds no lock of the observer's or
 * of the graphs'. The functions are pure questions but for `launch`. */
struct tl_graph_gates {
    /* The arena of the first weight. */
    bool (*arena)(uint64_t generation, const uint32_t *weights, uint32_t count, uint32_t *arena);
    /* Device addresses of the flag words. */
    bool (*words)(uint32_t arena, uint64_t *published, uint64_t *consumed);
    /* Slots of the ring. */
    uint32_t (*ring)(uint32_t arena);
    /* Device addresses of the words by which a graph is stopped: where it may be, it writes its
     * place to `arrived` and waits until `permit` has reached that. False: nobody stops it. */
    bool (*stops)(uint64_t *arrived, uint64_t *permit);
    /* The streamed extents in which a weight lies: [*first, *past), none when it is resident.
     * False: the arena has no such weight in that generation. */
    bool (*span)(uint32_t arena, uint64_t generation, uint32_t weight, uint32_t *first,
                 uint32_t *past);
    /* Where a sequence that begins with a call naming these weights stands in the order. */
    void (*start)(uint32_t arena, uint64_t generation, const uint32_t *weights, uint32_t count,
                  struct tl_cursor *cursor);
    /* What a call that names these weights needs from the cursor on, and moves the cursor past it.
     * False: it cannot go with the stream from there; the cursor stays, or skips resident
     * layers. */
    bool (*need)(uint32_t arena, uint64_t generation, const uint32_t *weights, uint32_t count,
                 struct tl_cursor *cursor, struct tl_need *out);
    /* Before the real cuGraphLaunch of a graph that names weights, inside the gate of the call
     * (gate_ask on it has answered 0, and gate_done follows): takes the job to where the graph can
     * run; what the graph waits for and gives back counts when gate_done says that it was launched.
     * `stream` as the call names it. Returns a CUresult. */
    int (*launch)(const struct tl_graph_plan *plans, uint32_t count, void *stream, bool per_thread);
};

/* NULL while no arena on a GPU is sealed. Then graphs need no gates, and have none. */
const struct tl_graph_gates *graph_gates(void);
