/* The kernels of instantiated graphs, and the words of their parameters that may be addresses.
 *
 * Words are kept rather than weights, so that a graph built before its weights were watched is
 * understood all the same.
 */
#pragma once

#include <stdbool.h>

#include "tierline/interposer.h"

void graphs_instantiated(void *exec, void *graph);
void graphs_updated(void *exec, void *graph);
/* A kernel node of an instantiated graph got parameters: CUDA_KERNEL_NODE_PARAMS of version 1, or
 * of a later one, which has a kernel in it. */
void graphs_node_changed(void *exec, void *node, const void *parameters, bool has_kernel);
void graphs_any_node_changed(void *exec, void *node, const void *parameters);
void graphs_child_changed(void *exec, void *node, void *graph);
/* Answers CUDA_SUCCESS. */
int graphs_destroy(void *exec);

/* Shows the kernels of a graph that is about to be launched to the gate and the observer. */
int graphs_launch(struct tierline_call *call, void *exec);

void graphs_fork_before(void);
void graphs_fork_after(bool in_child);
