/* Marks in graphs: when the nodes of a graph that read weights first are through.
 *
 * A launch of a graph is one call, so events around it say nothing of the layers in it. While the
 * library times graphs, a clone of each is kept when it is instantiated. A timed launch is one of
 * an executable of that clone with an event after each node that is a cut (plans/cuts.h) among
 * those that read weights for the first time. The event stands between the node and whatever
 * follows it, so a chain stays a chain. What branches do side by side counts together.
 *
 * The first launch that is timed makes the executable, and its time in the job is nobody's: time a
 * job twice.
 *
 * Graphs that CUDA does not clone (with memory or conditional nodes), and executables whose nodes
 * were changed, have no marks: their launches are timed as a whole.
 */
#pragma once

#include "graphs/arrange.h"

struct graph_marks;

/* NULL when graphs are not timed, or this one cannot be. */
struct graph_marks *marks_keep(void *graph, const struct graph_view *view);
void marks_free(struct graph_marks *marks);

/* Times the launch that is about to be made. `first` tells the readers that read a weight for the
 * first time in this job, `launch` is the ordinal of the first reader. The executable to launch
 * instead of the program's; NULL: launch that one. `marks` may be NULL. */
void *marks_time(struct graph_marks *marks, const struct graph_view *view,
                 const struct graph_names *names, const bool *first, uint64_t launch,
                 struct tierline_call *call);
