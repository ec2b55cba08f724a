/* Weights that stream through a ring which is too small for them, in one process.
 *
 * The interposer is linked in. The weights lie in extents of which some are resident and the others
 * share the slots of a ring; a stream of its own plays the agent, with the operations that the
 * agent uses. The gate around launches is a small one, with the contract of graph_gate.h. What a
 * kernel computes depends on every byte that it reads: each step hashes a weight on top of what
 * another step left.
 */
#pragma once

#include <cuda.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "access.h"

enum { EXTENT = 2 << 20, EXTENTS = 10, STREAMED = 7, WEIGHTS = 14 };

extern unsigned char *content;  /* of the extents */
extern CUdeviceptr base, steps; /* of the extents; of the steps' outcomes */
extern uint32_t *words;         /* published at 0, consumed at 16 */
extern tierline_weight
    weights[WEIGHTS]; /* of unequal sizes: some share an extent, some lie in two */
extern CUfunction gemm;
extern const uint32_t in_order[WEIGHTS];

/* What the gate did and knows. */
struct job {
    bool streams;
    uint32_t consumed; /* given back, or to be given back by what was launched */
    uint32_t passes, fetched, graph_launches, eager_launches;
    uint32_t most_loose;
};
extern struct job job;

/* A device, its arena and the gate, with a ring of so many slots (2 to 4). */
void ring_open(uint32_t ring_slots);
void ring_close(void);
/* Whether calls pass the gate; they do from the start. */
void ring_gated(bool gated);
/* The program's streams are idle. */
void end_job(void);
/* Gives a weight's extents private copies; takes those of all back. */
void fetch(uint32_t weight);
void drop_private(void);

/* A launch that hashes a weight on top of step `in`, to step `out`. */
struct parameters {
    uint64_t weights, bytes, in, out, duration;
    void *pointers[5];
};
void **parameters_of(struct parameters *p, uint32_t weight, uint32_t in, uint32_t out);
CUDA_KERNEL_NODE_PARAMS node_of(struct parameters *p, uint32_t weight, uint32_t in, uint32_t out);
void launch(uint32_t weight, uint32_t in, uint32_t out, CUstream stream);

/* What a step left, and what a chain of them leaves, by the CPU. */
uint64_t step(uint32_t index);
uint64_t expected(const uint32_t *order, uint32_t count);

CUgraph capture(const uint32_t *order, uint32_t count, CUstream stream);
size_t nodes_in(CUgraph graph);
uint64_t gates_added(void);
void run_graph(CUgraphExec exec, CUstream stream);
