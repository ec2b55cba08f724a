/* Graphs: nodes of work and the edges between them.
 *
 * Invariants: an edge joins two nodes of one graph and never closes a circle; a node owns its work;
 * a graph owns its nodes. One lock guards all graphs, because streams of several threads may be
 * captured into one.
 */
#pragma once

#include <cuda.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "work.h"

struct edge {
    CUgraphNode from;
    CUgraphEdgeData data;
};

struct CUgraphNode_st {
    CUgraph graph;
    unsigned id; /* counted within the graph; never reused */
    struct work *work;
    struct edge *edges; /* what this node depends on */
    size_t edge_count;
    CUgraphNode origin; /* in a clone: the node it was copied from */
};

struct CUgraph_st {
    unsigned id;
    unsigned next_node;
    CUgraphNode *nodes; /* in the order in which they were added */
    size_t count, capacity;
    CUgraph origin; /* of a clone */
    bool embedded;  /* belongs to a child node: not to be destroyed by the program */
};

void graphs_lock(void);
void graphs_unlock(void);

/* All of these under the lock. */
CUgraph graph_new(void);
/* Frees the graph, its nodes and their work. */
void graph_drop(CUgraph graph);
/* A deep copy; NULL when memory is short. */
CUgraph graph_duplicate(CUgraph graph);
/* Adds a node that owns the work from now on, also when this fails. data may be NULL. */
CUresult graph_add(CUgraph graph, struct work *work, const CUgraphNode *after,
                   const CUgraphEdgeData *data, size_t count, CUgraphNode *added);
/* A permutation of the graph's nodes in which edges point forward; free() it. NULL when memory is
 * short. */
CUgraphNode *graph_sorted(CUgraph graph);
CUgraphNodeType node_type(CUgraphNode node);
/* Is it a live node of this graph? */
bool graph_has(CUgraph graph, CUgraphNode node);
/* False when memory is short. data may be NULL. */
bool edge_add(CUgraphNode to, CUgraphNode from, const CUgraphEdgeData *data);
/* Position among the graph's nodes; their count when it is none. */
size_t node_index(CUgraph graph, CUgraphNode node);
/* Frees a node that is out of its graph's list. */
void node_drop(CUgraphNode node);

/* graph_duplicate and graph_drop, taking the lock. */
CUgraph graph_copy(CUgraph graph);
void graph_free(CUgraph graph);
