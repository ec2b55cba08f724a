/* See arrange.h. */
#include "graphs/arrange.h"

#include <stdlib.h>
#include <string.h>

#include "plans/order.h"
#include "plans/ring.h"

enum { NO_ARENA = UINT32_MAX };

/* ---- names */

int weights_ascending(const void *one, const void *other) {
    uint32_t a = *(const uint32_t *)one;
    uint32_t b = *(const uint32_t *)other;
    return (a > b) - (a < b);
}

static bool find_distinct(struct graph_names *names, uint32_t count) {
    names->distinct = calloc((size_t)count + 1, sizeof *names->distinct);
    if (names->distinct == NULL) {
        return false;
    }
    memcpy(names->distinct, names->weights, count * sizeof *names->distinct);
    qsort(names->distinct, count, sizeof *names->distinct, weights_ascending);
    for (uint32_t i = 0; i < count; i++) {
        if (i == 0 || names->distinct[i] != names->distinct[names->distinct_count - 1]) {
            names->distinct[names->distinct_count++] = names->distinct[i];
        }
    }
    return true;
}

bool graph_names_find(const struct graph_reader *readers, uint64_t generation,
                      struct graph_names *out) {
    uint32_t count = 0;
    for (const struct graph_reader *r = readers; r != NULL; r = r->next) {
        count++;
    }
    *out = (struct graph_names){.generation = generation,
                                .reader_count = count,
                                .ends = calloc((size_t)count + 1, sizeof *out->ends),
                                .tops = calloc((size_t)count + 1, sizeof *out->tops),
                                .weights = calloc(1, sizeof *out->weights)};
    bool whole = out->ends != NULL && out->tops != NULL && out->weights != NULL;
    uint32_t filled = 0;
    uint32_t i = 0;
    for (const struct graph_reader *r = readers; whole && r != NULL; r = r->next) {
        whole = observer_resolve(r->ranges, r->count, &out->weights, &filled);
        if (whole) {
            out->tops[i] = r->top;
            out->ends[i++] = filled;
        }
    }
    if (!whole || !find_distinct(out, filled)) {
        graph_names_free(out);
        return false;
    }
    return true;
}

void graph_names_free(struct graph_names *names) {
    free(names->distinct);
    free(names->ends);
    free(names->tops);
    free(names->weights);
    *names = (struct graph_names){0};
}

bool readers_name_the_same(const struct graph_reader *one, const struct graph_reader *other) {
    struct graph_names a;
    struct graph_names b;
    uint64_t generation = observer_generation();
    bool same = false;
    if (graph_names_find(one, generation, &a)) {
        if (graph_names_find(other, generation, &b)) {
            uint32_t count = a.reader_count;
            same = count == b.reader_count &&
                   (count == 0 ||
                    (memcmp(a.ends, b.ends, count * sizeof *a.ends) == 0 &&
                     memcmp(a.weights, b.weights, a.ends[count - 1] * sizeof *a.weights) == 0));
            graph_names_free(&b);
        }
        graph_names_free(&a);
    }
    return same;
}

static uint32_t graph_names_total(const struct graph_names *names) {
    return names->reader_count == 0 ? 0 : names->ends[names->reader_count - 1];
}

/* ---- where the weights lie */

struct lying {
    uint32_t weight, arena;
    uint32_t first, past; /* streamed extents */
    bool loose;
};

static int by_weight(const void *one, const void *other) {
    uint32_t a = ((const struct lying *)one)->weight;
    uint32_t b = ((const struct lying *)other)->weight;
    return (a > b) - (a < b);
}

static struct lying *find_weight(struct lying *lying, uint32_t count, uint32_t weight) {
    struct lying key = {.weight = weight};
    return bsearch(&key, lying, count, sizeof *lying, by_weight);
}

/* Each weight once; *count of them. NULL when memory is short. */
static struct lying *locate(const struct tl_graph_gates *gates, const struct graph_names *names,
                            uint32_t *count) {
    uint32_t total = graph_names_total(names);
    struct lying *lying = calloc((size_t)total + 1, sizeof *lying);
    if (lying == NULL) {
        return NULL;
    }
    for (uint32_t i = 0; i < total; i++) {
        lying[i].weight = names->weights[i];
    }
    qsort(lying, total, sizeof *lying, by_weight);
    *count = 0;
    for (uint32_t i = 0; i < total; i++) {
        if (*count > 0 && lying[*count - 1].weight == lying[i].weight) {
            continue;
        }
        struct lying *here = &lying[(*count)++];
        *here = (struct lying){.weight = lying[i].weight, .arena = NO_ARENA};
        uint32_t arena = 0;
        if (gates->arena(names->generation, &here->weight, 1, &arena) &&
            gates->span(arena, names->generation, here->weight, &here->first, &here->past)) {
            here->arena = arena;
        }
    }
    return lying;
}

/* The arena of which most streams; when nothing does any of them, or NO_ARENA if not `any`. */
static uint32_t main_arena(const struct lying *lying, uint32_t count, bool any) {
    uint32_t best = NO_ARENA;
    uint64_t most = 0;
    for (uint32_t i = 0; any && i < count && best == NO_ARENA; i++) {
        best = lying[i].arena;
    }
    for (uint32_t i = 0; i < count; i++) {
        uint64_t sum = 0;
        for (uint32_t k = 0; lying[i].arena != NO_ARENA && k < count; k++) {
            sum += lying[k].arena == lying[i].arena ? lying[k].past - lying[k].first : 0;
        }
        if (sum > most) {
            most = sum;
            best = lying[i].arena;
        }
        while (i + 1 < count && lying[i + 1].arena == lying[i].arena) {
            i++;
        }
    }
    return best;
}

/* ---- the arrangement */

struct arranger {
    const struct tl_graph_gates *gates;
    const struct graph_view *view;
    const struct graph_names *names;
    struct arrangement *made;
    bool *early;
    bool *stops;
    struct lying *lying;
    uint32_t lying_count;
    struct plan_node *nodes;
    struct plan_span *spans;
    uint32_t *reads; /* of one node */
    struct plan_question question;
    struct graph_order order;
};

/* Sorts what readers name by the nodes in which they lie. */
static bool name_nodes(struct arranger *a) {
    uint32_t nodes = a->view->node_count;
    uint32_t *ends = calloc((size_t)nodes + 1, sizeof *ends);
    uint32_t *weights = calloc((size_t)graph_names_total(a->names) + 1, sizeof *weights);
    a->made->node_ends = ends;
    a->made->node_weights = weights;
    if (ends == NULL || weights == NULL) {
        return false;
    }
    const struct graph_names *names = a->names;
    for (uint32_t r = 0, i = 0; r < names->reader_count; i = names->ends[r++]) {
        if (names->tops[r] < nodes) {
            ends[names->tops[r] + 1] += names->ends[r] - i;
        }
    }
    for (uint32_t v = 0; v < nodes; v++) {
        ends[v + 1] += ends[v];
    }
    for (uint32_t r = 0, i = 0; r < names->reader_count; r++) {
        for (; i < names->ends[r]; i++) {
            if (names->tops[r] < nodes) {
                weights[ends[names->tops[r]]++] = names->weights[i];
            }
        }
    }
    return true; /* ends[v] was where node v begins, and is now where it ends */
}

static uint32_t node_begin(const struct arrangement *made, uint32_t node) {
    return node == 0 ? 0 : made->node_ends[node - 1];
}

/* A kernel may read what the one before it has put the addresses of into memory, as those that make
 * tables for batched products do, and names nothing then. So what follows a node in its chain and
 * names nothing counts as a reader of the same. Not where branches run side by side: the ring could
 * not hold what all of them keep. */
static void hold_after(struct arranger *a) {
    const struct graph_order *order = &a->order;
    for (uint32_t i = 0; order->chain_count == 1 && i < a->view->node_count; i++) {
        uint32_t v = order->nodes[i];
        struct plan_node *node = &a->nodes[v];
        for (uint32_t e = order->in_begin[v];
             node->span_begin == node->span_end && e < order->in_begin[v + 1]; e++) {
            uint32_t before = order->in_from[e];
            if (order->chains[before] == order->chains[v]) {
                node->span_begin = a->nodes[before].span_begin;
                node->span_end = a->nodes[before].span_end;
            }
        }
    }
}

static bool ask_question(struct arranger *a) {
    uint32_t count = a->view->node_count;
    a->nodes = calloc((size_t)count + 1, sizeof *a->nodes);
    a->spans = calloc((size_t)graph_names_total(a->names) + 1, sizeof *a->spans);
    a->reads = calloc((size_t)graph_names_total(a->names) + 1, sizeof *a->reads);
    a->early = calloc((size_t)a->view->edge_count + 1, sizeof *a->early);
    a->stops = calloc((size_t)count + 1, sizeof *a->stops);
    if (a->nodes == NULL || a->spans == NULL || a->reads == NULL || a->early == NULL ||
        a->stops == NULL) {
        return false;
    }
    bool any_early = false;
    for (uint32_t e = 0; e < a->view->edge_count; e++) {
        a->early[e] = abi_edge_is_early(&a->view->edge_data[e]);
        any_early = any_early || a->early[e];
    }
    uint32_t filled = 0;
    for (uint32_t v = 0; v < count; v++) {
        a->nodes[v].span_begin = filled;
        for (uint32_t i = node_begin(a->made, v); i < a->made->node_ends[v]; i++) {
            const struct lying *lying =
                find_weight(a->lying, a->lying_count, a->made->node_weights[i]);
            bool here = lying != NULL && lying->arena == a->made->arena;
            a->stops[v] = a->stops[v] || here;
            if (here && lying->past > lying->first) {
                a->spans[filled++] = (struct plan_span){lying->first, lying->past};
            }
        }
        a->nodes[v].span_end = filled;
    }
    uint32_t ring = a->gates->ring(a->made->arena); /* 0: nothing streams */
    a->question = (struct plan_question){.node_count = count,
                                         .edge_count = a->view->edge_count,
                                         .ring = ring > 0 ? ring : 1,
                                         .nodes = a->nodes,
                                         .spans = a->spans,
                                         .edges = a->view->edges,
                                         .early = any_early ? a->early : NULL,
                                         .stops = a->made->permit != 0 ? a->stops : NULL};
    if (!order_nodes(&a->question, &a->order)) {
        return false;
    }
    hold_after(a);
    return true;
}

/* Weights that lie where the ring cannot hold them. */
static bool find_loose(struct arranger *a) {
    bool *is_private = calloc((size_t)ring_extents(&a->question) + 1, sizeof *is_private);
    a->made->loose = calloc((size_t)a->lying_count + 1, sizeof *a->made->loose);
    bool whole = is_private != NULL && a->made->loose != NULL &&
                 ring_privates(&a->question, &a->order, is_private);
    for (uint32_t i = 0; whole && i < a->lying_count; i++) {
        struct lying *lying = &a->lying[i];
        for (uint32_t x = lying->first; lying->arena == a->made->arena && x < lying->past; x++) {
            lying->loose = lying->loose || is_private[x];
        }
        if (lying->loose) {
            a->made->loose[a->made->loose_count++] = lying->weight;
        }
    }
    free(is_private);
    return whole;
}

/* Follows the order learned through the graph's: what is given back after each node. */
static void follow_order(struct arranger *a) {
    struct tl_cursor cursor = {0};
    bool started = false;
    for (uint32_t i = 0; i < a->view->node_count; i++) {
        uint32_t v = a->order.nodes[i];
        uint32_t *weights = a->reads;
        uint32_t count = 0;
        uint32_t past = 0;
        for (uint32_t k = node_begin(a->made, v); k < a->made->node_ends[v]; k++) {
            const struct lying *lying =
                find_weight(a->lying, a->lying_count, a->made->node_weights[k]);
            if (lying != NULL && lying->arena == a->made->arena && !lying->loose) {
                weights[count++] = lying->weight;
                past = lying->past > past ? lying->past : past;
            }
        }
        if (count == 0) {
            continue;
        }
        if (!started) {
            a->gates->start(a->made->arena, a->made->generation, weights, count, &cursor);
            started = true;
        }
        struct tl_need need = {0};
        uint32_t before = cursor.layer;
        bool known =
            a->gates->need(a->made->arena, a->made->generation, weights, count, &cursor, &need) &&
            need.streamed && cursor.layer != before;
        /* What the order does not know is given back when the graph itself reads it no more. */
        a->nodes[v].releases = known ? need.releases : past;
    }
    a->made->layer = cursor.layer;
}

struct arrangement *arrange(const struct tl_graph_gates *gates, const struct graph_view *view,
                            const struct graph_names *names) {
    struct arranger a = {
        .gates = gates, .view = view, .names = names, .made = calloc(1, sizeof *a.made)};
    bool whole = a.made != NULL;
    if (whole) {
        a.made->generation = names->generation;
        a.lying = locate(gates, names, &a.lying_count);
        bool stops = gates->stops(&a.made->arrived, &a.made->permit);
        a.made->arena = a.lying == NULL ? NO_ARENA : main_arena(a.lying, a.lying_count, stops);
        whole = a.made->arena != NO_ARENA &&
                gates->words(a.made->arena, &a.made->published, &a.made->consumed) &&
                name_nodes(&a) && ask_question(&a) && find_loose(&a);
    }
    if (whole) {
        follow_order(&a);
        a.made->plan = plan_graph(&a.question);
    }
    order_free(&a.order);
    free(a.lying);
    free(a.nodes);
    free(a.spans);
    free(a.reads);
    free(a.early);
    free(a.stops);
    if (!whole || a.made->plan == NULL) {
        arrangement_free(a.made);
        return NULL;
    }
    return a.made;
}

void arrangement_free(struct arrangement *arrangement) {
    if (arrangement != NULL) {
        plan_free(arrangement->plan);
        free(arrangement->node_ends);
        free(arrangement->node_weights);
        free(arrangement->loose);
        free(arrangement);
    }
}

/* ---- what a launch says */

static bool arranged(const struct arrangement *arrangement, uint32_t node, uint32_t weight) {
    for (uint32_t i = node_begin(arrangement, node); i < arrangement->node_ends[node]; i++) {
        if (arrangement->node_weights[i] == weight) {
            return true;
        }
    }
    return false;
}

/* Marks what no wait of the graph stands for. */
static void find_launch_loose(struct lying *lying, uint32_t count, const struct graph_names *names,
                              const struct arrangement *arrangement) {
    for (uint32_t i = 0; i < count; i++) {
        lying[i].loose = arrangement == NULL || lying[i].arena != arrangement->arena;
    }
    for (uint32_t i = 0; arrangement != NULL && i < arrangement->loose_count; i++) {
        struct lying *found = find_weight(lying, count, arrangement->loose[i]);
        if (found != NULL) {
            found->loose = true;
        }
    }
    for (uint32_t r = 0, i = 0; arrangement != NULL && r < names->reader_count; r++) {
        for (; i < names->ends[r]; i++) {
            struct lying *found = find_weight(lying, count, names->weights[i]);
            if (names->tops[r] == NO_TOP ||
                !arranged(arrangement, names->tops[r], names->weights[i])) {
                found->loose = true;
            }
        }
    }
}

static int by_arena(const void *one, const void *other) {
    uint32_t a = ((const struct lying *)one)->arena;
    uint32_t b = ((const struct lying *)other)->arena;
    return a == b ? by_weight(one, other) : (a > b) - (a < b);
}

static struct tl_graph_plan plan_of(const struct graph_names *names, uint32_t arena,
                                    const struct arrangement *arrangement) {
    struct tl_graph_plan plan = {.arena = arena, .generation = names->generation};
    if (arrangement != NULL && arrangement->arena == arena) {
        const struct graph_plan *gates = arrangement->plan;
        plan.lowest = gates->lowest;
        plan.needs = gates->needs;
        plan.consumed_before = gates->lowest;
        plan.consumed = gates->consumed > gates->lowest ? gates->consumed : 0;
        plan.layer = arrangement->layer;
    }
    return plan;
}

bool launch_plans_make(const struct tl_graph_gates *gates, const struct graph_names *names,
                       const struct arrangement *arrangement, struct launch_plans *out) {
    uint32_t count = 0;
    struct lying *lying = locate(gates, names, &count);
    *out = (struct launch_plans){.plans = calloc((size_t)count + 1, sizeof *out->plans),
                                 .weights = calloc(2 * (size_t)count + 1, sizeof *out->weights)};
    if (lying == NULL || out->plans == NULL || out->weights == NULL) {
        free(lying);
        launch_plans_free(out);
        return false;
    }
    find_launch_loose(lying, count, names, arrangement);
    qsort(lying, count, sizeof *lying, by_arena);
    uint32_t *next = out->weights;
    for (uint32_t begin = 0, end = 0; begin < count && lying[begin].arena != NO_ARENA;
         begin = end) {
        struct tl_graph_plan plan = plan_of(names, lying[begin].arena, arrangement);
        plan.weights = next;
        for (end = begin; end < count && lying[end].arena == lying[begin].arena; end++) {
            *next++ = lying[end].weight;
        }
        plan.weight_count = end - begin;
        plan.loose = next;
        for (uint32_t i = begin; i < end; i++) {
            if (lying[i].loose && lying[i].past > lying[i].first) {
                *next++ = lying[i].weight;
                plan.loose_count++;
            }
        }
        out->plans[out->count++] = plan;
    }
    free(lying);
    return true;
}

void launch_plans_free(struct launch_plans *plans) {
    free(plans->plans);
    free(plans->weights);
    *plans = (struct launch_plans){0};
}
