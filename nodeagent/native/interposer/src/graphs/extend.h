/* Gates in graphs: a copy of a program's graph that waits for weights and gives them back.
 *
 * The program's graph is never touched. A clone gets the gates and is instantiated in its place; it
 * is kept as long as the executable lives, because calls that change nodes of an executable must
 * name the clone's, and so that the gates can be set again. (Gates put into the program's own graph
 * and taken out again would spare the clone. But the edges that they replace could not be put back
 * exactly as they were, a failure half-way would leave a broken graph to the program, and nobody
 * could set the gates of the executable later.)
 *
 * Graphs that CUDA does not clone (with memory or conditional nodes), or does not instantiate with
 * gates (for launches from the device), get none: what they read is loose.
 *
 * Makes driver calls, so no lock is held but that of the one executable.
 */
#pragma once

#include "graphs/arrange.h"

struct extension;

/* NULL when the graph cannot have these gates; it then goes to the driver as it is. */
struct extension *extension_new(void *graph, const struct graph_view *view,
                                const struct arrangement *arrangement);
void extension_free(struct extension *extension);

/* The graph to instantiate. */
void *extension_graph(const struct extension *extension);

/* The clone's node for one of the program's; any other node itself. */
void *extension_node(const struct extension *extension, void *node);

/* Whether an arrangement has its gates at the same places. */
bool extension_fits(const struct extension *extension, const struct arrangement *arrangement);

/* Sets the executable's gates to a fitting arrangement's values; NULL: they let everything pass
 * and write to nobody. Does nothing when they stand so already. Returns a CUresult. */
int extension_set(struct extension *extension, void *exec, const struct arrangement *arrangement);

/* A clone of another graph with the same gates, for an update of the executable; `nodes` gets the
 * clone's nodes, as they stand in the view. NULL when the graphs differ in shape. The caller
 * destroys the one (graphs/clone.h) and frees the other. */
void *extension_twin(struct extension *extension, void *graph, const struct graph_view *view,
                     void ***nodes);
/* Turns a twin that an update named into the view's node; NULL when it is none: a gate. */
void twins_name(void **wrong, void *const *twins, const struct graph_view *view);
