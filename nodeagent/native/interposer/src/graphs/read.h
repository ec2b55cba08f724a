/* A graph as the driver describes it: its nodes, its edges, and the addresses that they name.
 *
 * Kernels name what their parameters hold, copies their source. A child graph, or a graph inside a
 * conditional node, counts with the node of the outermost graph in which it lies. Nothing is
 * changed, and no lock is held.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "driver/abi.h"
#include "launches/observer.h"
#include "plans/plan.h"

/* A kernel or a copy. */
struct graph_reader {
    struct graph_reader *next;
    const void *node; /* its own handle, in whatever inner graph */
    uint32_t top;     /* the outermost node in which it lies; NO_TOP: not known */
    uint32_t count;
    struct observer_range ranges[];
};

enum { NO_TOP = UINT32_MAX };

struct graph_view {
    uint32_t node_count, edge_count;
    void **nodes;
    struct plan_edge *edges;
    struct abi_edge *edge_data;
    bool fixed;                   /* it cannot be cloned: it has memory or conditional nodes */
    struct graph_reader *readers; /* in an order in which they may run */
};

/* NULL when the driver does not say, or memory is short. */
struct graph_view *view_read(void *graph);
void view_free(struct graph_view *view);

/* The readers of one kernel node; of a copy; of a child graph. NULL when memory is short. */
struct graph_reader *reader_of_kernel(const void *node, uint32_t top,
                                      const struct abi_kernel_node *parameters, bool has_kernel);
struct graph_reader *reader_of_copy(const void *node, uint32_t top, const struct abi_copy3d *copy);
struct graph_reader *readers_of_child(void *graph, uint32_t top);
void readers_free(struct graph_reader *reader);

/* A node's place; the count when it is none of them. */
uint32_t view_place(const struct graph_view *view, const void *node);

/* A conditional node was added, with the graphs that it may run: an array of the driver's that
 * lives as long as the node. */
void view_note_conditional(const void *node, void *const *graphs, uint32_t count);
