/* The planner of gates in graphs, against a model of the ring.
 *
 * The model runs the extended graph together with an agent that streams through a ring of slots.
 * Anything that can happen next may happen: a node starts or ends, a copy starts or ends, a word is
 * written. After an early edge a node may start, and end, as soon as the other one has started.
 * Small graphs are run through every schedule, large ones through random ones. Checked all the way:
 * a node reads only what is in place and stays in place, `consumed` only grows, a wait is reached
 * only when the graph has given back all that the wait can hang on, nothing ever hangs, and what
 * the plan promises of the end holds.
 */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "plans/plan.h"

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: %s does not hold (case %s)\n", __FILE__, __LINE__, #condition, \
                    case_name);                                                                    \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

enum { MOST_NODES = 160, MOST_EDGES = 1000, MOST_SPANS = 480, MOST_EXTENTS = 1024 };

static char case_name[64] = "none";

/* ---- questions */

struct graph {
    struct plan_question question;
    struct plan_node nodes[MOST_NODES];
    struct plan_span spans[MOST_SPANS];
    struct plan_edge edges[MOST_EDGES];
    bool early[MOST_EDGES];
    uint32_t span_count;
};

static uint64_t random_state;

static uint32_t draw(uint32_t below) {
    random_state = random_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)((random_state >> 33) % below);
}

static struct graph *graph_new(uint32_t ring) {
    struct graph *graph = calloc(1, sizeof *graph);
    CHECK(graph != NULL);
    graph->question = (struct plan_question){.ring = ring,
                                             .nodes = graph->nodes,
                                             .spans = graph->spans,
                                             .edges = graph->edges,
                                             .early = graph->early};
    return graph;
}

/* A node that reads nothing yet. */
static uint32_t add_node(struct graph *graph) {
    uint32_t node = graph->question.node_count++;
    CHECK(node < MOST_NODES);
    graph->nodes[node] =
        (struct plan_node){.span_begin = graph->span_count, .span_end = graph->span_count};
    return node;
}

/* The newest node reads extents too, and by the order learned gives them back. */
static void add_span(struct graph *graph, uint32_t first, uint32_t past) {
    struct plan_node *node = &graph->nodes[graph->question.node_count - 1];
    CHECK(graph->span_count < MOST_SPANS);
    graph->spans[graph->span_count++] = (struct plan_span){first, past};
    node->span_end = graph->span_count;
    node->releases = past > node->releases ? past : node->releases;
}

static void add_edge(struct graph *graph, uint32_t from, uint32_t to) {
    for (uint32_t e = 0; e < graph->question.edge_count; e++) {
        if (graph->edges[e].from == from && graph->edges[e].to == to) {
            return;
        }
    }
    CHECK(graph->question.edge_count < MOST_EDGES);
    graph->edges[graph->question.edge_count++] = (struct plan_edge){from, to};
}

/* A chain of nodes that read one extent each; NONE reads nothing. */
enum { NONE = UINT32_MAX };

static struct graph *chain(uint32_t ring, const uint32_t *extents, uint32_t count) {
    struct graph *graph = graph_new(ring);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t node = add_node(graph);
        if (extents[i] != NONE) {
            add_span(graph, extents[i], extents[i] + 1);
        }
        if (i > 0) {
            add_edge(graph, node - 1, node);
        }
    }
    return graph;
}

/* ---- the model */

enum { IDLE, BUSY, DONE }; /* a gate is busy while it waits */

struct model {
    const struct graph *graph;
    const struct graph_plan *plan;
    uint32_t node_count, all, edge_count, extents;
    struct plan_edge *edges; /* of the extended graph */
    bool *early;
    bool *is_private;
};

struct state {
    uint8_t status[3 * MOST_NODES];
    uint16_t missing[3 * MOST_NODES]; /* of what it depends on */
    uint32_t begun, published, consumed;
    uint32_t left;
};

static struct model model_new(const struct graph *graph, const struct graph_plan *plan) {
    const struct plan_question *q = &graph->question;
    struct model model = {.graph = graph,
                          .plan = plan,
                          .node_count = q->node_count,
                          .all = q->node_count + plan->gate_count,
                          .edges = calloc(q->edge_count + plan->added_count + 1, sizeof(*q->edges)),
                          .early = calloc(q->edge_count + plan->added_count + 1, sizeof(bool)),
                          .is_private = calloc(MOST_EXTENTS, sizeof(bool))};
    CHECK(model.edges != NULL && model.early != NULL && model.is_private != NULL);
    uint32_t replaced = 0;
    for (uint32_t e = 0; e < q->edge_count; e++) {
        if (replaced < plan->replaced_count && plan->replaced[replaced] == e) {
            replaced++;
        } else {
            model.early[model.edge_count] = q->early[e];
            model.edges[model.edge_count++] = q->edges[e];
        }
    }
    CHECK(replaced == plan->replaced_count);
    for (uint32_t e = 0; e < plan->added_count; e++) {
        CHECK(plan->added[e].from < model.all && plan->added[e].to < model.all);
        for (uint32_t other = 0; other < model.edge_count; other++) {
            /* The driver refuses an edge twice. */
            CHECK(model.edges[other].from != plan->added[e].from ||
                  model.edges[other].to != plan->added[e].to);
        }
        model.edges[model.edge_count++] = plan->added[e];
    }
    for (uint32_t i = 0; i < plan->private_count; i++) {
        model.is_private[plan->privates[i]] = true;
    }
    for (uint32_t s = 0; s < graph->span_count; s++) {
        model.extents = graph->spans[s].past > model.extents ? graph->spans[s].past : model.extents;
    }
    return model;
}

static void model_free(struct model *model) {
    free(model->edges);
    free(model->early);
    free(model->is_private);
}

/* Whether a node reads an extent through the ring. */
static bool reads(const struct model *model, uint32_t node, uint32_t extent) {
    if (model->is_private[extent]) {
        return false;
    }
    for (uint32_t s = model->graph->nodes[node].span_begin; s < model->graph->nodes[node].span_end;
         s++) {
        if (extent >= model->graph->spans[s].first && extent < model->graph->spans[s].past) {
            return true;
        }
    }
    return false;
}

/* What may happen next: at < all is a node or gate, all begins a copy, all + 1 ends it. */
static bool possible(const struct model *model, const struct state *state, uint32_t at) {
    if (at == model->all) {
        return state->begun == state->published && state->begun < model->extents &&
               state->consumed + model->graph->question.ring > state->begun;
    }
    if (at == model->all + 1) {
        return state->begun > state->published;
    }
    if (state->status[at] == IDLE) {
        return state->missing[at] == 0;
    }
    return state->status[at] == BUSY &&
           (at < model->node_count ||
            state->published >= model->plan->gates[at - model->node_count].wait);
}

/* What hangs on an early edge from a node that starts, or on another edge from one that ends. */
static void let_follow(const struct model *model, struct state *state, uint32_t at, bool early) {
    for (uint32_t e = 0; e < model->edge_count; e++) {
        if (model->edges[e].from == at && model->early[e] == early) {
            state->missing[model->edges[e].to]--;
        }
    }
}

static void end(const struct model *model, struct state *state, uint32_t at) {
    state->status[at] = DONE;
    state->left--;
    let_follow(model, state, at, false);
}

static void begin_gate(const struct model *model, struct state *state, uint32_t at) {
    const struct plan_gate *gate = &model->plan->gates[at - model->node_count];
    CHECK(gate->write > 0 || gate->wait > 0 || gate->stop > 0);
    if (gate->write > 0) {
        CHECK(gate->write > state->consumed);
        state->consumed = gate->write;
    }
    CHECK(gate->wait <= state->consumed + model->graph->question.ring);
    if (gate->wait > 0) {
        state->status[at] = BUSY;
    } else {
        end(model, state, at);
    }
}

static void begin_node(const struct model *model, struct state *state, uint32_t at) {
    const struct plan_node *node = &model->graph->nodes[at];
    for (uint32_t s = node->span_begin; s < node->span_end; s++) {
        for (uint32_t x = model->graph->spans[s].first; x < model->graph->spans[s].past; x++) {
            if (!model->is_private[x]) {
                CHECK(state->published > x);
                CHECK(state->begun <= x + model->graph->question.ring);
            }
        }
    }
    state->status[at] = BUSY;
    let_follow(model, state, at, true);
}

static void happen(const struct model *model, struct state *state, uint32_t at) {
    if (at == model->all) {
        uint32_t ring = model->graph->question.ring;
        for (uint32_t v = 0; state->begun >= ring && v < model->node_count; v++) {
            CHECK(state->status[v] != BUSY || !reads(model, v, state->begun - ring));
        }
        state->begun++;
    } else if (at == model->all + 1) {
        state->published++;
    } else if (state->status[at] == BUSY) {
        end(model, state, at);
    } else if (at < model->node_count) {
        begin_node(model, state, at);
    } else {
        begin_gate(model, state, at);
    }
}

static struct state at_launch(const struct model *model) {
    struct state state = {.consumed = model->plan->lowest, .left = model->all};
    for (uint32_t e = 0; e < model->edge_count; e++) {
        state.missing[model->edges[e].to]++;
    }
    return state;
}

static void check_end(const struct model *model, const struct state *state) {
    CHECK(state->consumed == model->plan->consumed);
    CHECK(model->plan->needs == 0 || state->published >= model->plan->needs);
}

/* One random schedule. `eager` prefers to run the graph before the agent. */
static void walk(const struct model *model, bool eager) {
    static uint32_t choices[3 * MOST_NODES + 2];
    struct state state = at_launch(model);
    while (state.left > 0) {
        uint32_t count = 0;
        for (uint32_t at = 0; at < model->all + 2; at++) {
            if ((!eager || at < model->all || count == 0) && possible(model, &state, at)) {
                choices[count++] = at;
            }
        }
        CHECK(count > 0);
        happen(model, &state, choices[draw(count)]);
    }
    check_end(model, &state);
}

/* ---- every schedule of a small graph */

enum { SEEN_SLOTS = 1 << 16, MOST_STATES = SEEN_SLOTS / 2, PACKED_MOST = 22 };
static uint64_t *seen;
static uint32_t seen_count;

static uint64_t pack(const struct model *model, const struct state *state) {
    uint64_t packed = 1; /* never 0 */
    for (uint32_t i = 0; i < model->all; i++) {
        packed = packed * 3 + state->status[i];
    }
    return (packed * 64 + state->published) * 2 + (state->begun > state->published);
}

static bool is_new(uint64_t packed) {
    uint32_t slot = (uint32_t)((packed * UINT64_C(0x9e3779b97f4a7c15)) >> 48);
    for (; seen[slot] != 0; slot = (slot + 1) % SEEN_SLOTS) {
        if (seen[slot] == packed) {
            return false;
        }
    }
    seen[slot] = packed;
    seen_count++;
    return true;
}

static void visit(const struct model *model, const struct state *state) {
    if (!is_new(pack(model, state)) || seen_count > MOST_STATES) {
        return;
    }
    if (state->left == 0) {
        check_end(model, state);
        return;
    }
    uint32_t count = 0;
    for (uint32_t at = 0; at < model->all + 2; at++) {
        if (possible(model, state, at)) {
            struct state next = *state;
            happen(model, &next, at);
            visit(model, &next);
            count++;
        }
    }
    CHECK(count > 0);
}

/* False: too many states to see them all. */
static bool visit_all(const struct model *model) {
    if (model->all > PACKED_MOST || model->extents > 60) {
        return false;
    }
    memset(seen, 0, SEEN_SLOTS * sizeof *seen);
    seen_count = 0;
    struct state state = at_launch(model);
    visit(model, &state);
    return seen_count <= MOST_STATES;
}

/* ---- what holds of every plan */

/* A wait is for what its node needs, and stands only where that is more than the node's ancestors
 * waited for. */
static void check_waits(const struct model *model) {
    uint32_t own[MOST_NODES] = {0};
    uint32_t before[MOST_NODES] = {0};
    for (uint32_t e = 0; e < model->edge_count; e++) {
        uint32_t from = model->edges[e].from;
        uint32_t to = model->edges[e].to;
        uint32_t wait =
            from < model->node_count ? 0 : model->plan->gates[from - model->node_count].wait;
        if (wait > 0 && to < model->node_count) {
            CHECK(reads(model, to, wait - 1));
            own[to] = wait;
        }
    }
    for (bool changed = true; changed;) {
        changed = false;
        for (uint32_t e = 0; e < model->graph->question.edge_count; e++) {
            uint32_t from = model->graph->edges[e].from;
            uint32_t to = model->graph->edges[e].to;
            uint32_t most = own[from] > before[from] ? own[from] : before[from];
            if (most > before[to]) {
                before[to] = most;
                changed = true;
            }
        }
    }
    for (uint32_t v = 0; v < model->node_count; v++) {
        CHECK(own[v] == 0 || own[v] > before[v]);
    }
}

static struct graph_plan *run_case(const struct graph *graph, uint32_t walks) {
    struct graph_plan *plan = plan_graph(&graph->question);
    CHECK(plan != NULL);
    struct model model = model_new(graph, plan);
    check_waits(&model);
    if (!visit_all(&model)) {
        walks *= 8;
    }
    for (uint32_t i = 0; i < walks; i++) {
        walk(&model, i % 2 == 0);
    }
    model_free(&model);
    return plan;
}

/* ---- cases */

static void nothing_is_read(void) {
    struct graph *graph = chain(2, (const uint32_t[]){NONE, NONE, NONE}, 3);
    struct graph_plan *plan = run_case(graph, 1);
    CHECK(plan->gate_count == 0 && plan->added_count == 0 && plan->replaced_count == 0);
    CHECK(plan->needs == 0 && plan->consumed == 0 && plan->private_count == 0);
    plan_free(plan);
    graph->question.node_count = 0;
    graph->question.edge_count = 0;
    plan_free(run_case(graph, 1));
    free(graph);
}

/* The gates in front of the nodes of a chain, which stays one. */
static void follow_chain(const struct graph *graph, const struct graph_plan *plan,
                         struct plan_gate *before) {
    const struct plan_question *q = &graph->question;
    uint32_t next[3 * MOST_NODES];
    uint32_t in[3 * MOST_NODES] = {0};
    memset(next, 0xff, sizeof next);
    for (uint32_t e = 0, replaced = 0; e < q->edge_count; e++) {
        if (replaced < plan->replaced_count && plan->replaced[replaced] == e) {
            replaced++;
        } else {
            next[q->edges[e].from] = q->edges[e].to;
            in[q->edges[e].to]++;
        }
    }
    for (uint32_t e = 0; e < plan->added_count; e++) {
        CHECK(next[plan->added[e].from] == UINT32_MAX);
        next[plan->added[e].from] = plan->added[e].to;
        in[plan->added[e].to]++;
    }
    uint32_t at = 0;
    for (uint32_t v = 0; v < q->node_count + plan->gate_count; v++) {
        CHECK(in[v] <= 1);
        at = in[v] == 0 ? v : at;
    }
    struct plan_gate gate = {0};
    for (; at != UINT32_MAX; at = next[at]) {
        if (at >= q->node_count) {
            gate = plan->gates[at - q->node_count];
        } else {
            before[at] = gate;
            gate = (struct plan_gate){0};
        }
    }
}

/* Before every node but the first that may be stopped, with what was waited for so far. */
static void a_chain_is_stopped(void) {
    static const bool stops[] = {true, true, true, false, true, true, true, true, true};
    static const uint32_t again[] = {0, 1, 1, 0, 2, 2, 3, 4, 5};
    struct graph *graph = chain(2, (const uint32_t[]){0, NONE, 0, 1, 1, NONE, 2, 3, 4}, 9);
    graph->question.stops = stops;
    struct graph_plan *plan = run_case(graph, 4);
    struct plan_gate before[9];
    follow_chain(graph, plan, before);
    uint32_t number = 0;
    for (uint32_t v = 0; v < 9; v++) {
        bool stopped = stops[v] && v > 0;
        number += stopped;
        CHECK(before[v].stop == (stopped ? number : 0));
        CHECK(!stopped || before[v].again == again[v]);
    }
    plan_free(plan);
    free(graph);
}

/* Nothing streams: only the stops stand there. */
static void a_resident_chain_is_stopped(void) {
    static const bool stops[] = {true, false, true};
    struct graph *graph = chain(1, (const uint32_t[]){NONE, NONE, NONE}, 3);
    graph->question.stops = stops;
    struct graph_plan *plan = run_case(graph, 1);
    CHECK(plan->gate_count == 1 && plan->needs == 0);
    CHECK(plan->gates[0].stop == 1 && plan->gates[0].again == 0);
    plan_free(plan);
    free(graph);
}

/* Where branches run side by side, nothing says that all of them stand. */
static void branches_are_not_stopped(void) {
    static const bool stops[] = {true, true, true};
    struct graph *graph = graph_new(2);
    for (int i = 0; i < 3; i++) {
        add_node(graph);
    }
    graph->edges[graph->question.edge_count++] = (struct plan_edge){0, 1};
    graph->edges[graph->question.edge_count++] = (struct plan_edge){0, 2};
    graph->question.stops = stops;
    struct graph_plan *plan = run_case(graph, 1);
    CHECK(plan->gate_count == 0);
    plan_free(plan);
    free(graph);
}

/* A chain stays a chain: each gate has one edge in and one out. */
static void gates_stand_in_a_chain(void) {
    struct graph *graph = chain(2, (const uint32_t[]){0, NONE, 0, 1, 1, NONE, 2, 3, 4}, 9);
    struct graph_plan *plan = run_case(graph, 4);
    CHECK(plan->private_count == 0 && plan->lowest == 0);
    CHECK(plan->needs == 5 && plan->consumed == 5);
    static const struct plan_gate wanted[] = {{0, 1, 0, 0}, {1, 2, 0, 0}, {2, 0, 0, 0},
                                              {0, 3, 0, 0}, {3, 4, 0, 0}, {4, 5, 0, 0},
                                              {5, 0, 0, 0}};
    CHECK(plan->gate_count == sizeof wanted / sizeof *wanted);
    for (uint32_t w = 0; w < plan->gate_count; w++) {
        bool found = false;
        for (uint32_t g = 0; g < plan->gate_count; g++) {
            found = found || memcmp(&plan->gates[g], &wanted[w], sizeof *wanted) == 0;
        }
        CHECK(found);
        uint32_t in = 0;
        uint32_t out = 0;
        for (uint32_t e = 0; e < plan->added_count; e++) {
            in += plan->added[e].to == graph->question.node_count + w;
            out += plan->added[e].from == graph->question.node_count + w;
        }
        CHECK(in <= 1 && out <= 1 && in + out >= 1);
    }
    plan_free(plan);
    free(graph);
}

/* A graph in the middle of a job begins where it reads, and leaves what the learned order keeps. */
static void a_piece_of_a_job(void) {
    struct graph *graph = chain(2, (const uint32_t[]){5, 6, 7}, 3);
    graph->nodes[2].releases = 7; /* what follows reads extent 7 too */
    struct graph_plan *plan = run_case(graph, 4);
    CHECK(plan->lowest == 5 && plan->needs == 8 && plan->consumed == 7);
    plan_free(plan);
    free(graph);
}

/* The head of a language model that reads the embedding again, in the extent that came first. */
static void what_is_read_first_and_last_is_private(void) {
    struct graph *graph = chain(3, (const uint32_t[]){0, 1, 2, 3, 4, 5, 6, 7, 0}, 9);
    struct graph_plan *plan = run_case(graph, 4);
    CHECK(plan->private_count == 1 && plan->privates[0] == 0);
    CHECK(plan->lowest == 1 && plan->consumed == 8);
    plan_free(plan);
    free(graph);
}

static void what_is_read_far_too_early_is_private(void) {
    struct graph *graph = chain(3, (const uint32_t[]){20, 0, 1, 2, 3, 4, 5, 6}, 8);
    struct graph_plan *plan = run_case(graph, 4);
    CHECK(plan->private_count == 1 && plan->privates[0] == 20);
    plan_free(plan);
    free(graph);
}

/* Two extents at once that are further apart than the ring is long. */
static void one_node_that_no_ring_can_hold(void) {
    struct graph *graph = graph_new(2);
    add_node(graph);
    add_span(graph, 0, 1);
    add_span(graph, 2, 3);
    struct graph_plan *plan = run_case(graph, 2);
    CHECK(plan->private_count == 1);
    plan_free(plan);
    graph->question.ring = 3;
    plan = run_case(graph, 2);
    CHECK(plan->private_count == 0);
    plan_free(plan);
    /* A child graph that reads more than fits. */
    graph->spans[1] = (struct plan_span){1, 9};
    plan = run_case(graph, 2);
    CHECK(plan->private_count == 6);
    plan_free(plan);
    free(graph);
}

static void a_reversed_order_is_private_but_for_a_ring(void) {
    struct graph *graph = chain(2, (const uint32_t[]){7, 6, 5, 4, 3, 2, 1, 0}, 8);
    struct graph_plan *plan = run_case(graph, 4);
    CHECK(plan->private_count == 6);
    plan_free(plan);
    free(graph);
}

/* Two branches that were created in the wrong order, and read in turns. */
static void branches_follow_the_stream(void) {
    struct graph *graph = graph_new(2);
    for (uint32_t i = 0; i < 8; i++) {
        add_node(graph);
        uint32_t extent = (i < 4 ? 2 * i + 1 : 2 * (i - 4));
        add_span(graph, extent, extent + 1);
        if (i % 4 != 0) {
            add_edge(graph, i - 1, i);
        }
    }
    struct graph_plan *plan = run_case(graph, 8);
    CHECK(plan->private_count == 0 && plan->consumed == 8);
    plan_free(plan);
    free(graph);
}

static void a_circle_is_refused(void) {
    struct graph *graph = chain(2, (const uint32_t[]){0, 1, 2}, 3);
    graph->edges[graph->question.edge_count++] = (struct plan_edge){2, 0};
    CHECK(plan_graph(&graph->question) == NULL);
    free(graph);
}

static struct graph *random_graph(uint32_t most_nodes, uint32_t extents, uint32_t ring,
                                  uint32_t disorder, bool learned) {
    struct graph *graph = graph_new(ring);
    uint32_t count = 1 + draw(most_nodes);
    uint32_t density = draw(4);
    for (uint32_t v = 0; v < count; v++) {
        add_node(graph);
        for (uint32_t r = draw(3); r > 0; r--) {
            /* Along the order, or anywhere. */
            uint32_t first = draw(100) < disorder ? draw(extents) : v * extents / count;
            uint32_t past = first + 1 + draw(2);
            add_span(graph, first, past < extents ? past : extents);
        }
        if (!learned) {
            graph->nodes[v].releases = draw(extents + 1);
        }
        for (uint32_t e = 0; v > 0 && e < density; e++) {
            uint32_t near = v < 4 ? v : 4;
            add_edge(graph, draw(2) == 0 ? v - 1 : v - 1 - draw(near), v);
        }
    }
    bool any_early = draw(3) == 0;
    for (uint32_t e = 0; e < graph->question.edge_count; e++) {
        graph->early[e] = any_early && draw(2) == 0;
    }
    return graph;
}

static void shuffle_nodes(struct graph *graph) {
    uint32_t names[MOST_NODES];
    struct plan_node nodes[MOST_NODES];
    uint32_t count = graph->question.node_count;
    for (uint32_t v = 0; v < count; v++) {
        names[v] = v;
    }
    for (uint32_t v = count; v > 1; v--) {
        uint32_t other = draw(v);
        uint32_t kept = names[v - 1];
        names[v - 1] = names[other];
        names[other] = kept;
    }
    memcpy(nodes, graph->nodes, count * sizeof *nodes);
    for (uint32_t v = 0; v < count; v++) {
        graph->nodes[names[v]] = nodes[v];
    }
    for (uint32_t e = 0; e < graph->question.edge_count; e++) {
        graph->edges[e].from = names[graph->edges[e].from];
        graph->edges[e].to = names[graph->edges[e].to];
    }
}

/* A kernel that may still run when the next one, which does not wait for it, is through. */
static void early_edges(void) {
    struct graph *graph = chain(1, (const uint32_t[]){0, 0, NONE, 1, 1, 2}, 6);
    for (uint32_t e = 0; e < graph->question.edge_count; e++) {
        graph->early[e] = true;
    }
    struct graph_plan *plan = run_case(graph, 8);
    CHECK(plan->private_count == 0 && plan->consumed == 3);
    plan_free(plan);
    free(graph);
}

static void random_small_graphs(void) {
    uint32_t with_privates = 0;
    for (uint32_t i = 0; i < 400; i++) {
        random_state = i;
        snprintf(case_name, sizeof case_name, "small %u", i);
        bool learned = draw(3) > 0;
        struct graph *graph =
            random_graph(7, 2 + draw(7), 1 + draw(3), (uint32_t[]){0, 10, 40, 100}[i % 4], learned);
        if (draw(2) == 0) {
            shuffle_nodes(graph);
        }
        struct graph_plan *plan = run_case(graph, 2);
        with_privates += plan->private_count > 0;
        CHECK(!learned || plan->consumed >= plan->needs);
        plan_free(plan);
        free(graph);
    }
    CHECK(with_privates > 100 && with_privates < 350);
}

static void random_large_graphs(void) {
    for (uint32_t i = 0; i < 40; i++) {
        random_state = i;
        snprintf(case_name, sizeof case_name, "large %u", i);
        bool learned = draw(3) > 0;
        struct graph *graph = random_graph(MOST_NODES - 1, 40 + draw(200), 1 + draw(8),
                                           (uint32_t[]){0, 1, 10, 100}[i % 4], learned);
        if (draw(2) == 0) {
            shuffle_nodes(graph);
        }
        struct graph_plan *plan = plan_graph(&graph->question);
        CHECK(plan != NULL && (!learned || plan->consumed >= plan->needs));
        struct model model = model_new(graph, plan);
        for (uint32_t w = 0; w < 3; w++) {
            walk(&model, w == 0);
        }
        model_free(&model);
        plan_free(plan);
        free(graph);
    }
}

int main(void) {
    static const struct {
        const char *name;
        void (*run)(void);
    } cases[] = {
        {"nothing_is_read", nothing_is_read},
        {"gates_stand_in_a_chain", gates_stand_in_a_chain},
        {"a_chain_is_stopped", a_chain_is_stopped},
        {"a_resident_chain_is_stopped", a_resident_chain_is_stopped},
        {"branches_are_not_stopped", branches_are_not_stopped},
        {"a_piece_of_a_job", a_piece_of_a_job},
        {"what_is_read_first_and_last_is_private", what_is_read_first_and_last_is_private},
        {"what_is_read_far_too_early_is_private", what_is_read_far_too_early_is_private},
        {"one_node_that_no_ring_can_hold", one_node_that_no_ring_can_hold},
        {"a_reversed_order_is_private_but_for_a_ring", a_reversed_order_is_private_but_for_a_ring},
        {"branches_follow_the_stream", branches_follow_the_stream},
        {"a_circle_is_refused", a_circle_is_refused},
        {"early_edges", early_edges},
        {"random_small_graphs", random_small_graphs},
        {"random_large_graphs", random_large_graphs},
    };
    seen = calloc(SEEN_SLOTS, sizeof *seen);
    CHECK(seen != NULL);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        snprintf(case_name, sizeof case_name, "%s", cases[i].name);
        cases[i].run();
    }
    free(seen);
    return 0;
}
