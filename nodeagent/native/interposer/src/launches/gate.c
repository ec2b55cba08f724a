/* See gate.h. */
#include "launches/gate.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "driver/abi.h"
#include "driver/driver.h"
#include "launches/timing.h"

/* Two words that launches of any thread must read together: a pair never changes, and lives on
 * because a launch may still be in it. There are as many as calls of tierline_gate_set. */
struct gate {
    tierline_gate *function;
    void *context;
    struct gate *older;
};
static _Atomic(struct gate *) gate;
static _Atomic(const struct own_gate *) own;

static const struct own_gate *own_gate(void) {
    return atomic_load_explicit(&own, memory_order_acquire);
}

int gate_ask(struct tierline_call *call) {
    const struct gate *asked = atomic_load_explicit(&gate, memory_order_acquire);
    int verdict = asked == NULL || asked->function == NULL ? ABI_SUCCESS
                                                           : asked->function(call, asked->context);
    const struct own_gate *ours = own_gate();
    if (verdict != ABI_SUCCESS || ours == NULL) {
        return verdict;
    }
    call->own = ours;
    return ours->begin(call);
}

void gate_done(struct tierline_call *call) {
    if (call->timed) {
        timing_after(call);
        call->timed = false;
    }
    /* The one that began it, though it may be nobody's by now: it counts the call. */
    const struct own_gate *ours = call->held != 0 ? call->own : NULL;
    if (ours != NULL) {
        ours->end(call);
    }
}

void gate_own(const struct own_gate *fresh) {
    atomic_store_explicit(&own, fresh, memory_order_release);
}

const struct tl_graph_gates *graph_gates(void) {
    const struct own_gate *ours = own_gate();
    return ours == NULL ? NULL : ours->graphs;
}

int gate_stream_leaves(void *stream, bool per_thread) {
    const struct own_gate *ours = own_gate();
    if (ours != NULL) {
        ours->leave(stream, per_thread);
    }
    return ABI_SUCCESS;
}

TIERLINE_EXPORT int tierline_gate_set(tierline_gate *function, void *context) {
    struct gate *fresh = malloc(sizeof *fresh);
    if (fresh == NULL) {
        return -ENOMEM;
    }
    *fresh = (struct gate){function, context, atomic_load(&gate)};
    while (!atomic_compare_exchange_weak(&gate, &fresh->older, fresh)) {
    }
    return 0;
}

void gate_forget(void) {
    atomic_store(&own, NULL);
    for (struct gate *old = atomic_exchange(&gate, NULL); old != NULL;) {
        struct gate *older = old->older;
        free(old);
        old = older;
    }
}
