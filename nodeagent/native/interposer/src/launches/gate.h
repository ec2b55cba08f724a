/* The gate: asked before a call goes to the driver, and told when it is back.
 *
 * Two of them: the one of tierline_gate_set, and the library's own, which keeps the lease and the
 * order of streamed weights. The own one may hold a lock from `begin` to `end`.
 */
#pragma once

#include "launches/graph_gate.h"
#include "tierline/interposer.h"

struct own_gate {
    /* A CUresult; only after 0 the call goes to the driver, and `end` follows. */
    int (*begin)(struct tierline_call *call);
    void (*end)(struct tierline_call *call);
    /* A stream is about to be destroyed, or captured. */
    void (*leave)(void *stream, bool per_thread);
    const struct tl_graph_gates *graphs;
};

/* The verdict of both gates on a call. */
int gate_ask(struct tierline_call *call);
/* After the real call, or after calls of one list. */
void gate_done(struct tierline_call *call);

/* NULL takes it away; calls under way may still be in it. */
void gate_own(const struct own_gate *fresh);

/* Answers CUDA_SUCCESS. */
int gate_stream_leaves(void *stream, bool per_thread);

/* In a fork's child. */
void gate_forget(void);
