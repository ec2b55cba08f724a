/* Instantiated graphs: what their kernels and copies name, and the gates among them.
 *
 * Addresses are kept rather than weights, so that a graph built before its weights were watched is
 * understood all the same: what it reads is then loose, as it has no gates.
 */
#pragma once

#include <stdbool.h>

#include "tierline/interposer.h"

/* The driver's function with everything but the graph: how a handler calls it for another one. */
typedef int graphs_real(void *request, void *graph);

/* Instantiates a graph with gates if it needs some and can have them, else as it is. `exec` is
 * where the executable stands after success. */
int graphs_instantiate(void *described, void **exec, graphs_real *real, void *request);

/* Nodes that a failed update named, to be turned into the program's; NULL where there is none. */
struct graphs_wrong {
    void **node, **from_node;
};
int graphs_update(void *exec, void *described, graphs_real *real, void *request,
                  struct graphs_wrong wrong);

/* The node by which the driver knows a node of the program's graph in an executable that is about
 * to be changed. The calls below take such nodes. */
void *graphs_node(void *exec, void *node);

/* A kernel node of an instantiated graph got parameters: CUDA_KERNEL_NODE_PARAMS of version 1, or
 * of a later one, which has a kernel in it. */
void graphs_kernel_changed(void *exec, void *node, const void *parameters, bool has_kernel);
void graphs_copy_changed(void *exec, void *node, const void *parameters);
void graphs_child_changed(void *exec, void *node, void *graph);
void graphs_any_node_changed(void *exec, void *node, const void *parameters);

/* Answers CUDA_SUCCESS. */
int graphs_destroy(void *exec);

/* Shows the kernels of a graph that is about to be launched to the gate and the observer, and takes
 * the job to where the graph can run. While launches are timed, *exec may become another executable
 * that does the same (graphs/marks.h). */
int graphs_launch(struct tierline_call *call, void **exec);
/* After it: tells the gates what the driver answered, and passes it on. */
int graphs_launched(struct tierline_call *call, int result);

void graphs_fork_before(void);
void graphs_fork_after(bool in_child);
