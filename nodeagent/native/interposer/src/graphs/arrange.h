/* Which weights a graph's nodes name, how its gates stand by that, and what a launch must say.
 *
 * One arena streams during a job. A graph that names weights of several gets gates for the one of
 * which it reads the most; those of others are loose, as is what cannot go with the stream in the
 * graph's own order. Asks the gates, so no lock of the observer or of the gates is held.
 */
#pragma once

#include "graphs/read.h"
#include "launches/graph_gate.h"

/* What readers name, as of one generation. */
struct graph_names {
    uint64_t generation;
    uint32_t reader_count;
    uint32_t *ends; /* where reader r's weights end */
    uint32_t *tops; /* of each reader */
    uint32_t *weights;
    uint32_t distinct_count, *distinct; /* each of them once, ascending */
};

/* False when memory is short. */
bool graph_names_find(const struct graph_reader *readers, uint64_t generation,
                      struct graph_names *out);
void graph_names_free(struct graph_names *names);
/* Orders indexes of weights, for qsort. */
int weights_ascending(const void *one, const void *other);
/* Whether two lists of readers name the same weights, in the same order. */
bool readers_name_the_same(const struct graph_reader *one, const struct graph_reader *other);

struct arrangement {
    uint64_t generation;
    uint32_t arena;
    uint32_t layer;               /* the cursor after the graph */
    uint64_t published, consumed; /* addresses of the words */
    uint64_t arrived, permit;     /* of those for stops; 0: the graph has none */
    struct graph_plan *plan;
    uint32_t *node_ends, *node_weights; /* what each node named, loose or not */
    uint32_t loose_count, *loose;       /* ascending */
};

/* NULL when nothing of it streams and nobody stops it, or memory is short: then all of it is loose.
 */
struct arrangement *arrange(const struct tl_graph_gates *gates, const struct graph_view *view,
                            const struct graph_names *names);
void arrangement_free(struct arrangement *arrangement);

struct launch_plans {
    uint32_t count;
    struct tl_graph_plan *plans;
    uint32_t *weights; /* the plans' lists lie in here */
};

/* `arrangement` is that of the gates which the graph has; NULL: it has none that hold. False when
 * memory is short. */
bool launch_plans_make(const struct tl_graph_gates *gates, const struct graph_names *names,
                       const struct arrangement *arrangement, struct launch_plans *out);
void launch_plans_free(struct launch_plans *plans);
