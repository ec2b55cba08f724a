/* The hooks of calls that turn a graph into an executable, or an executable into another one: the
 * driver is given the graph with its gates. */
#pragma once

#include "driver/hooks.h"

int handle_instantiate(enum hook hook, void **exec, void *graph, void **error_node, char *log,
                       size_t log_bytes);
int handle_instantiate_flags(enum hook hook, void **exec, void *graph, unsigned long long flags);
int handle_instantiate_params(enum hook hook, void **exec, void *graph, void *parameters);
int handle_update_v1(enum hook hook, void *exec, void *graph, void **error_node, int *result);
int handle_update(enum hook hook, void *exec, void *graph, void *result);

/* A node was added by its parameters: conditional ones say only now which graphs they may run. */
void graphs_node_added(const void *node, const void *parameters);
