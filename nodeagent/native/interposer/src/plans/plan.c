/* See plan.h.
 *
 * The readers (nodes that read streamed extents) stand in one order in which they may run. What
 * cannot come through the ring in that order is made private (plans/ring.c). After each reader
 * `consumed` rises to what the order learned gives back there, at least to what the next reader
 * needs given back, and at most to the earliest extent that the graph has still to read. Such a
 * write comes after every reader of what it gives back, and after the write before it. A reader
 * that needs more than its ancestors waited for gets a wait in front.
 *
 * Invariant: when a wait is reached, all that the graph must give back for it has been given back:
 * an edge leads from the write to the wait wherever the graph has no such path. A graph thus waits
 * for the agent alone, never for a branch of its own, in whatever order and on however few hardware
 * queues the driver runs its branches. All gates and edges go forward in the order of the readers,
 * so they close no circle.
 *
 * A graph can be stopped only if all of it is one chain: then what stands before a node is through
 * when that may begin, and no write is still to come.
 *
 * In a chain a gate stands in the chain, in place of the edge: a branch at every gate would make
 * the driver fork and join streams there. Other writes are branches of their own.
 */
#include "plans/plan.h"

#include <stdlib.h>
#include <string.h>

#include "plans/order.h"
#include "plans/ring.h"

enum { NONE = UINT32_MAX };

/* In order. */
struct reader {
    uint32_t node;
    uint32_t low, needs; /* of its extents that are not private: [low, needs) */
    uint32_t lowest;     /* the earliest extent that it or a later reader reads */
    uint32_t covered;    /* by which write, counted from 1 */
};

struct write {
    uint32_t value;
    uint32_t gate;
    uint32_t after; /* the node after which it stands in the chain; NONE: it is a branch */
};

struct planner {
    const struct plan_question *question;
    struct graph_order order;
    struct graph_plan *plan;
    bool *is_private;
    struct reader *readers;
    uint32_t reader_count;
    struct write *writes;
    uint32_t write_count;
    uint32_t *after, *before; /* a node's gates in the chain, or NONE */
    uint32_t *last_of_chain;  /* of the readers that a write must follow; else NONE */
    uint32_t added_room;
};

static uint32_t larger(uint32_t one, uint32_t other) {
    return one > other ? one : other;
}

static uint32_t smaller(uint32_t one, uint32_t other) {
    return one < other ? one : other;
}

/* ---- readers */

static void add_reader(struct planner *p, uint32_t node) {
    const struct plan_question *q = p->question;
    struct reader reader = {.node = node, .low = UINT32_MAX};
    for (uint32_t s = q->nodes[node].span_begin; s < q->nodes[node].span_end; s++) {
        for (uint32_t x = q->spans[s].first; x < q->spans[s].past; x++) {
            if (!p->is_private[x]) {
                reader.low = smaller(reader.low, x);
                reader.needs = larger(reader.needs, x + 1);
            }
        }
    }
    if (reader.needs > 0) {
        p->readers[p->reader_count++] = reader;
    }
}

static void find_readers(struct planner *p) {
    for (uint32_t i = 0; i < p->question->node_count; i++) {
        add_reader(p, p->order.nodes[i]);
    }
    uint32_t lowest = UINT32_MAX;
    for (uint32_t k = p->reader_count; k-- > 0;) {
        lowest = smaller(lowest, p->readers[k].low);
        p->readers[k].lowest = lowest;
        p->plan->needs = larger(p->plan->needs, p->readers[k].needs);
    }
    p->plan->lowest = p->reader_count > 0 ? lowest : 0;
    p->plan->consumed = p->plan->lowest;
}

/* ---- gates, and the edges that they add */

static uint32_t add_gate(struct planner *p, struct plan_gate gate) {
    p->plan->gates[p->plan->gate_count] = gate;
    return p->plan->gate_count++;
}

static bool add_edge(struct planner *p, uint32_t from, uint32_t to) {
    if (p->plan->added_count == p->added_room) {
        uint32_t room = p->added_room * 2 + 64;
        struct plan_edge *more = realloc(p->plan->added, room * sizeof *more);
        if (more == NULL) {
            return false;
        }
        p->plan->added = more;
        p->added_room = room;
    }
    p->plan->added[p->plan->added_count++] = (struct plan_edge){from, to};
    return true;
}

static uint32_t gate_node(const struct planner *p, uint32_t gate) {
    return p->question->node_count + gate;
}

static bool is_edge(const struct planner *p, uint32_t from, uint32_t to) {
    for (uint32_t e = p->order.in_begin[to]; e < p->order.in_begin[to + 1]; e++) {
        if (p->order.in_from[e] == from) {
            return true;
        }
    }
    return false;
}

/* Whether a node comes after a write because that stands in the node's chain, or right before. */
static bool follows(const struct planner *p, uint32_t node, const struct write *write) {
    uint32_t after = write->after;
    return after != NONE && ((p->order.chains[after] == p->order.chains[node] &&
                              p->order.places[after] < p->order.places[node]) ||
                             is_edge(p, after, node));
}

/* ---- writes */

/* Marks, by chain, the last of the readers up to `last` that the next write must follow; says how
 * many chains there are. */
static uint32_t cover(struct planner *p, uint32_t last, uint32_t value, uint32_t *first_open) {
    uint32_t chains = 0;
    for (uint32_t k = *first_open; k <= last; k++) {
        struct reader *reader = &p->readers[k];
        if (reader->covered > 0 || (k != last && reader->low >= value)) {
            continue;
        }
        reader->covered = p->write_count + 1;
        uint32_t *mark = &p->last_of_chain[p->order.chains[reader->node]];
        chains += *mark == NONE;
        *mark = reader->node;
    }
    while (*first_open <= last && p->readers[*first_open].covered > 0) {
        ++*first_open;
    }
    return chains;
}

/* Edges to a write from the readers that it must follow, but for the one after which it stands in
 * the chain: the last ones of their chains, and those that are not through when the next one of the
 * chain is. Clears the marks. */
static bool join_readers(struct planner *p, uint32_t begin, uint32_t last,
                         const struct write *write) {
    bool whole = true;
    for (uint32_t k = begin; whole && k <= last; k++) {
        uint32_t node = p->readers[k].node;
        if (p->readers[k].covered != p->write_count) {
            continue;
        }
        uint32_t *mark = &p->last_of_chain[p->order.chains[node]];
        bool is_last = *mark == node;
        *mark = is_last ? NONE : *mark;
        if (node != write->after && (is_last || p->order.early[node])) {
            whole = add_edge(p, node, gate_node(p, write->gate));
        }
    }
    return whole;
}

static bool place_write(struct planner *p, uint32_t last, uint32_t value, uint32_t *first_open) {
    uint32_t begin = *first_open;
    uint32_t chains = cover(p, last, value, first_open);
    uint32_t node = p->readers[last].node;
    const struct write *previous = p->write_count > 0 ? &p->writes[p->write_count - 1] : NULL;
    bool ordered = previous == NULL;
    for (uint32_t k = begin; !ordered && k <= last; k++) {
        uint32_t reader = p->readers[k].node;
        ordered =
            p->last_of_chain[p->order.chains[reader]] == reader && follows(p, reader, previous);
    }
    uint32_t gate = add_gate(p, (struct plan_gate){.write = value});
    bool in_chain = chains == 1 && ordered;
    const struct write write = {value, gate, in_chain ? node : NONE};
    p->writes[p->write_count++] = write;
    if (in_chain) {
        p->after[node] = gate;
    }
    return join_readers(p, begin, last, &write) &&
           (ordered || add_edge(p, gate_node(p, previous->gate), gate_node(p, gate)));
}

static bool place_writes(struct planner *p) {
    uint32_t released = 0;
    uint32_t first_open = 0;
    p->writes = calloc((size_t)p->reader_count + 1, sizeof *p->writes);
    bool whole = p->writes != NULL;
    for (uint32_t k = 0; whole && k < p->reader_count; k++) {
        bool more = k + 1 < p->reader_count;
        uint32_t needs = more ? p->readers[k + 1].needs : 0;
        uint32_t ring = p->question->ring;
        released = larger(released, p->question->nodes[p->readers[k].node].releases);
        uint32_t value = larger(released, needs > ring ? needs - ring : 0);
        value = more ? smaller(value, p->readers[k + 1].lowest) : value;
        if (value > p->plan->consumed) {
            whole = place_write(p, k, value, &first_open);
            p->plan->consumed = value;
        }
    }
    return whole;
}

/* ---- waits */

/* The write without which the wait could be for ever; NULL when it is none of the graph's. */
static const struct write *write_for(const struct planner *p, uint32_t needs) {
    uint32_t low = 0;
    uint32_t high = p->write_count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (p->writes[middle].value + (uint64_t)p->question->ring < needs) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    bool launched = p->plan->lowest + (uint64_t)p->question->ring >= needs;
    return launched ? NULL : &p->writes[low];
}

static bool place_wait(struct planner *p, const struct reader *reader) {
    const struct graph_order *order = &p->order;
    uint32_t node = reader->node;
    const struct write *write = write_for(p, reader->needs);
    bool joined = write == NULL || follows(p, node, write);
    uint32_t in = order->in_begin[node];
    uint32_t from = order->in_begin[node + 1] - in == 1 ? order->in_from[in] : NONE;
    if (joined && from != NONE && p->after[from] != NONE &&
        order->out_begin[from + 1] - order->out_begin[from] == 1) {
        p->before[node] = p->after[from];
        p->plan->gates[p->before[node]].wait = reader->needs;
        return true;
    }
    p->before[node] = add_gate(p, (struct plan_gate){.wait = reader->needs});
    return joined || add_edge(p, gate_node(p, write->gate), gate_node(p, p->before[node]));
}

static bool place_waits(struct planner *p) {
    const struct graph_order *order = &p->order;
    uint32_t *waited = calloc((size_t)p->question->node_count + 1, sizeof *waited);
    bool whole = waited != NULL;
    uint32_t k = 0;
    for (uint32_t i = 0; whole && i < p->question->node_count; i++) {
        uint32_t node = order->nodes[i];
        for (uint32_t e = order->in_begin[node]; e < order->in_begin[node + 1]; e++) {
            waited[node] = larger(waited[node], waited[order->in_from[e]]);
        }
        if (k < p->reader_count && p->readers[k].node == node) {
            if (p->readers[k].needs > waited[node]) {
                waited[node] = p->readers[k].needs;
                whole = place_wait(p, &p->readers[k]);
            }
            k++;
        }
    }
    free(waited);
    return whole;
}

/* ---- stops */

/* The gate in front of a node of the chain; the one after its predecessor, if there is one. */
static uint32_t gate_before(struct planner *p, uint32_t node) {
    const struct graph_order *order = &p->order;
    if (p->before[node] == NONE) {
        uint32_t in = order->in_begin[node];
        bool one = order->in_begin[node + 1] - in == 1;
        uint32_t after = one ? p->after[order->in_from[in]] : NONE;
        p->before[node] = after != NONE ? after : add_gate(p, (struct plan_gate){0});
    }
    return p->before[node];
}

static void place_stops(struct planner *p) {
    const struct plan_question *q = p->question;
    if (q->stops == NULL || p->order.chain_count != 1) {
        return;
    }
    uint32_t stops = 0;
    uint32_t waited = 0;
    uint32_t k = 0;
    for (uint32_t i = 0; i < q->node_count; i++) {
        uint32_t node = p->order.nodes[i];
        if (k < p->reader_count && p->readers[k].node == node) {
            waited = larger(waited, p->readers[k++].needs);
        }
        if (i > 0 && q->stops[node]) {
            struct plan_gate *gate = &p->plan->gates[gate_before(p, node)];
            gate->stop = ++stops;
            gate->again = waited;
        }
    }
}

/* Puts the gates that stand in chains into the edges. */
static bool replace_edges(struct planner *p) {
    const struct plan_question *q = p->question;
    bool whole = true;
    for (uint32_t e = 0; whole && e < q->edge_count; e++) {
        uint32_t after = p->after[q->edges[e].from];
        uint32_t before = p->before[q->edges[e].to];
        if (after == NONE && before == NONE) {
            continue;
        }
        p->plan->replaced[p->plan->replaced_count++] = e;
        uint32_t from = after == NONE ? q->edges[e].from : gate_node(p, after);
        uint32_t to = before == NONE ? q->edges[e].to : gate_node(p, before);
        whole = from == to || add_edge(p, from, to);
    }
    for (uint32_t v = 0; whole && v < q->node_count; v++) {
        whole = (p->after[v] == NONE || add_edge(p, v, gate_node(p, p->after[v]))) &&
                (p->before[v] == NONE || add_edge(p, gate_node(p, p->before[v]), v));
    }
    return whole;
}

/* ---- the whole */

static bool list_privates(struct planner *p, uint32_t extents) {
    for (uint32_t x = 0; x < extents; x++) {
        p->plan->private_count += p->is_private[x];
    }
    p->plan->privates = calloc((size_t)p->plan->private_count + 1, sizeof *p->plan->privates);
    for (uint32_t x = 0, i = 0; p->plan->privates != NULL && x < extents; x++) {
        if (p->is_private[x]) {
            p->plan->privates[i++] = x;
        }
    }
    return p->plan->privates != NULL;
}

static bool make_room(struct planner *p, uint32_t extents) {
    const struct plan_question *q = p->question;
    size_t nodes = (size_t)q->node_count + 1;
    p->is_private = calloc((size_t)extents + 1, sizeof *p->is_private);
    p->readers = calloc(nodes, sizeof *p->readers);
    p->after = malloc(nodes * sizeof *p->after);
    p->before = malloc(nodes * sizeof *p->before);
    p->last_of_chain = malloc(nodes * sizeof *p->last_of_chain);
    p->plan->gates = calloc(2 * nodes, sizeof *p->plan->gates);
    p->plan->replaced = calloc((size_t)q->edge_count + 1, sizeof *p->plan->replaced);
    if (p->is_private == NULL || p->readers == NULL || p->after == NULL || p->before == NULL ||
        p->last_of_chain == NULL || p->plan->gates == NULL || p->plan->replaced == NULL) {
        return false;
    }
    memset(p->after, 0xff, nodes * sizeof *p->after);
    memset(p->before, 0xff, nodes * sizeof *p->before);
    memset(p->last_of_chain, 0xff, nodes * sizeof *p->last_of_chain);
    return true;
}

struct graph_plan *plan_graph(const struct plan_question *question) {
    struct planner p = {.question = question, .plan = calloc(1, sizeof *p.plan)};
    uint32_t extents = ring_extents(question);
    bool whole = p.plan != NULL && make_room(&p, extents) && order_nodes(question, &p.order);
    if (whole) {
        whole = ring_privates(question, &p.order, p.is_private) && list_privates(&p, extents);
    }
    if (whole) {
        find_readers(&p);
        whole = place_writes(&p) && place_waits(&p);
    }
    if (whole) {
        place_stops(&p);
        whole = replace_edges(&p);
    }
    order_free(&p.order);
    free(p.is_private);
    free(p.readers);
    free(p.writes);
    free(p.after);
    free(p.before);
    free(p.last_of_chain);
    if (!whole) {
        plan_free(p.plan);
        return NULL;
    }
    return p.plan;
}

void plan_free(struct graph_plan *plan) {
    if (plan != NULL) {
        free(plan->gates);
        free(plan->added);
        free(plan->replaced);
        free(plan->privates);
        free(plan);
    }
}
