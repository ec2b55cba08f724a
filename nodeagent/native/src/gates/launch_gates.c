/* See launch_gates.h.
 *
 * A call that names weights passes under the gates' lock: what comes before it, the call itself and
 * what comes after it stand in one order, also among threads. Before it, on its own stream, what
 * skipped layers would have read is given back, and the stream waits for what the call needs, if
 * this stream has not yet. What no later layer reads is given back before the next call that names
 * weights and does not read there: the calls between often seem to name the layer's weights again,
 * as old addresses lie in the holes of their parameters. The CPU never waits.
 *
 * What cannot go with the stream (order.h), or would skip more than a ring of it, has the stream
 * begin again at what it reads, of the job's arena or another one: one streams at a time. That
 * waits for the GPU and the agent, about as long as a few extents take. A private copy takes as
 * long as many of them, but then the job has it: it is made of what the stream came back to as
 * often as that costs the same, and of what no ring holds. A call without weights only needs the
 * lease, and small copies between host and device, for which no job is to be begun, not even that.
 *
 * A weight whose address the program copies to the device may be read by launches that do not name
 * it, in this job or any later one: it gets a private copy for good before that, and streams no
 * more. What a kernel itself writes of its parameters is not seen: after each job from which a
 * program is learned its memory is searched for addresses (tables.h). A table that a kernel first
 * makes in a later job reads a weight until the next call on the stream, or node of the graph, that
 * names another one.
 *
 * Outside its jobs a program may change weights: load others, merge, train. What copies and memsets
 * write is seen, of kernels only which weights they name. Each gets private copies that may be
 * written, resident ones too, and no job begins until they were stored again (load.c).
 *
 * Where jobs may be preempted, a call that names weights has a gate of another kind before it, too
 * (launch_yields.h): that is where the GPU stands when the agent wants it for another job.
 *
 * Invariant: no call reads a streamed extent unless its stream has waited for it in this pass, or
 * it has a private copy; `consumed` never passes what issued work may still read. A graph's own
 * waits and writes count when the driver has taken it, not before: it may refuse.
 */
#include "gates/launch_gates.h"

#include "cuda/cuda.h"
#include "cuda/drain.h"
#include "cuda/streams.h"
#include "gates/flow.h"
#include "gates/launch_copies.h"
#include "gates/launch_graphs.h"
#include "gates/order.h"
#include "gates/watch.h"
#include "launches/gate.h"
#include "lease/detours.h"
#include "lease/launch_lease.h"
#include "lease/launch_state.h"
#include "lease/launch_yields.h"
#include "lease/window.h"
#include "link/state.h"

/* A private copy comes through the agent's memory and the staging memory: about so many streamed
 * extents. On an H200 14 ms of 32 MiB, which the stream copies in 0.6. */
#define COPY_COST 24U

/* So many returns in a row, each to what lies before the one before it. */
#define SURELY_BACKWARDS 2U

/* Bytes: 0.3 ms of an H200's link. */
#define MOST_TRANSFERRED ((uint64_t)16 << 20)

enum { PASSING = 1, LOCKED = 2 };

/* What a call names of one arena. */
struct named {
    struct tl_span all, open;
    uint32_t copies; /* streamed extents without a private copy */
};

static bool has_room_for_copies(const struct tl_arena *arena, const struct named *named) {
    return tl_passing_copies(arena) + named->copies <= arena->ring_slots;
}

/* Whether to begin the arena's stream again at what the call reads: where it begins a pass, where
 * that happened to it so seldom in this job that copies would have cost more, or where there is no
 * more room for them. */
static bool worth_going(const struct tl_arena *arena, const struct named *named) {
    struct tl_span open = named->open;
    if (named->copies == 0 || open.needs - open.lowest > arena->ring_slots) {
        return false;
    }
    uint32_t returns = arena->on_device.returns[arena->stream_extent[open.lowest]];
    return open.needs <= arena->ring_slots ||
           TL_RETURN_COST * returns < COPY_COST * named->copies ||
           !has_room_for_copies(arena, named);
}

/* Whether the call gives back more than a ring that nobody has read. */
static bool skips(const struct tl_arena *arena, const struct tl_need *need) {
    uint32_t consumed = tl_gates.cursor.consumed;
    uint32_t read = tl_gates.over > consumed ? tl_gates.over : consumed;
    return need->streamed && need->keeps > read + arena->ring_slots;
}

/* ---- a call that names weights, under the gates' lock; each answers a CUresult */

/* A function's first launch would wait for all that stands before it on the GPU. */
static void load_code(const struct tierline_call *call) {
    void *function = (void *)(uintptr_t)call->function; /* NOLINT(performance-no-int-to-ptr) */
    if (TL_CUDA(USED, cuFuncLoad, function) != ABI_SUCCESS) {
        void *of_kernel = NULL;
        if (TL_CUDA(USED, cuKernelGetFunction, &of_kernel, function) == ABI_SUCCESS) {
            TL_CUDA(USED, cuFuncLoad, of_kernel);
        }
    }
}

/* The CUresult for a code of the window's. */
static int window_result(int code) {
    if (code == 0) {
        return ABI_SUCCESS;
    }
    int result = tl_cuda_synchronise();
    if (result != ABI_SUCCESS) {
        tl_window_blame(result);
        return result;
    }
    tl_gates_say("a call is refused, as weights cannot be hidden or shown");
    return ABI_SYSTEM_NOT_READY;
}

static int go_with_the_stream(struct tierline_call *call, struct tl_arena *arena,
                              const struct tl_need *need, uint32_t layer) {
    struct tl_stream *stream = tl_stream_of(call->stream, call->per_thread);
    if (stream == NULL) {
        return ABI_CAPTURE_UNSUPPORTED;
    }
    if (call->unloaded && (need->streamed || tl_yields_may(tl_gates.client))) {
        load_code(call);
    }
    tl_yields_enter(tl_gates.client, stream);
    uint32_t over = tl_gates.over;
    bool reads_there = need->streamed && need->lowest < over;
    uint32_t keeps = !reads_there && over > need->keeps ? over : need->keeps;
    if (keeps <= tl_gates.cursor.begins &&
        need->needs <= tl_gates.cursor.consumed + arena->ring_slots) {
        keeps = 0; /* nothing of that was ever there: the stream need not go on for it */
    }
    int result = tl_gates_give_back(stream, arena, keeps);
    if (need->streamed && result == ABI_SUCCESS) {
        tl_window_wait(arena, need->needs);
        result = tl_stream_wait(stream, arena->on_device.published, need->needs);
        tl_stream_reads(stream, need->lowest);
    }
    if (result == ABI_SUCCESS) {
        result = tl_yields_gate(tl_gates.client, stream, false);
    }
    tl_gates.cursor.layer = layer;
    tl_gates.over = need->releases > over ? need->releases : over;
    tl_gates.at_driver = stream;
    return result;
}

/* What the call names, arena by arena; a bit an arena. */
static uint32_t collect(const tierline_client *client, const struct tierline_call *call,
                        struct named named[TIERLINE_MAX_ARENAS]) {
    uint32_t arenas = 0;
    for (uint32_t i = 0; i < call->weight_count; i++) {
        const struct tl_watched *watched = tl_watch_find(call->generation, call->weights[i]);
        if (watched == NULL || !tl_gates_sealed(watched->arena)) {
            continue;
        }
        const struct tl_arena *arena = &client->arenas[watched->arena];
        const struct tl_weight *weight = &arena->on_device.weights[watched->weight];
        struct named *of = &named[watched->arena];
        if ((arenas & (1U << watched->arena)) == 0) {
            *of = (struct named){0};
        }
        arenas |= 1U << watched->arena;
        if (arena->streamed_count == 0) {
            continue;
        }
        tl_span_add(&of->all, arena, weight, true);
        tl_span_add(&of->open, arena, weight, false);
        for (uint32_t e = weight->first; e <= weight->last; e++) {
            of->copies +=
                arena->stream_index[e] != TL_NOT_STREAMED && !tl_extent_is_private(arena, e);
        }
    }
    return arenas;
}

/* Whether the call reads what lies just before the place at which the stream began last. */
static bool is_before(const struct tl_arena *arena, uint32_t index, const struct named *named) {
    uint32_t lowest = named->open.lowest;
    uint32_t began = tl_gates.cursor.begins;
    return index == tl_gates.arena && lowest < began && began - lowest <= arena->ring_slots;
}

/* Where the stream begins for a call: at the start of a pass, or as late as its layer allows. It
 * is to copy what the call reads, and no more before something has been read there: the next call
 * may be out of turn as well, and would wait for a whole ring of copies. Where the calls go
 * backwards it is the ring of what lies before the last begin, which the next ones read. */
static struct tl_cursor place_of(const struct tl_arena *arena, const struct named *named) {
    struct tl_cursor place = {0};
    if (named->open.needs <= arena->ring_slots) {
        return place;
    }
    if (tl_gates.backwards >= SURELY_BACKWARDS) {
        uint32_t began = tl_gates.cursor.begins;
        uint32_t past = named->open.needs > began ? named->open.needs : began;
        uint32_t from = past - arena->ring_slots;
        return (struct tl_cursor){.begins = from, .consumed = from};
    }
    tl_order_find(arena, named->all, &place);
    bool found = place.consumed <= named->open.lowest &&
                 named->open.needs - place.consumed <= arena->ring_slots;
    return (struct tl_cursor){.layer = found ? place.layer : 0,
                              .begins = found ? place.consumed : named->open.lowest,
                              .consumed = named->open.needs - arena->ring_slots};
}

/* Begins an arena's stream again, for a call. Private copies may be dropped then, also of what the
 * call reads. */
static bool go_to(tierline_client *client, const struct tierline_call *call, uint32_t index,
                  struct named *named) {
    struct tl_arena *arena = &client->arenas[index];
    if (!worth_going(arena, named)) {
        return false;
    }
    tl_gates.backwards = is_before(arena, index, named) ? tl_gates.backwards + 1 : 0;
    uint32_t *returns = &arena->on_device.returns[arena->stream_extent[named->open.lowest]];
    if (tl_gates_go_to(client, index, place_of(arena, named)) != 0) {
        return false;
    }
    ++*returns;
    tl_detours_return();
    struct named again[TIERLINE_MAX_ARENAS];
    collect(client, call, again);
    *named = again[index];
    return true;
}

static int serve(tierline_client *client, struct tierline_call *call, uint32_t index,
                 struct named *named) {
    struct tl_arena *arena = &client->arenas[index];
    bool in_turn = true;
    if (index != tl_gates.arena && !atomic_load(&tl_gates.orphaned)) {
        go_to(client, call, index, named); /* else it reads copies */
    }
    if (tl_gates_stream(index)) {
        tl_gates.been |= 1U << index;
        struct tl_need need = {.keeps = tl_gates.cursor.consumed};
        struct tl_cursor cursor = tl_gates.cursor;
        bool goes = arena->streamed_count == 0 ||
                    tl_order_need(arena, named->all, named->open, &cursor, &need);
        if ((!goes || skips(arena, &need)) && go_to(client, call, index, named)) {
            in_turn = false;
            cursor = tl_gates.cursor;
            goes = tl_order_need(arena, named->all, named->open, &cursor, &need);
        }
        if (goes && tl_gates_announce(need.needs)) {
            tl_detours_count(in_turn);
            return go_with_the_stream(call, arena, &need, cursor.layer);
        }
    }
    tl_detours_count(named->copies == 0);
    return tl_gates_copy(client, index, call->generation, call->weights, call->weight_count);
}

/* The arena of the first weight that is the library's; TIERLINE_NO_ARENA if none is. */
static uint32_t first_arena(const struct tierline_call *call) {
    for (uint32_t i = 0; i < call->weight_count; i++) {
        const struct tl_watched *watched = tl_watch_find(call->generation, call->weights[i]);
        if (watched != NULL && tl_gates_sealed(watched->arena)) {
            return watched->arena;
        }
    }
    return TIERLINE_NO_ARENA;
}

/* ---- the gate */

static int refuse(int code) {
    tl_gates_say("a call is refused, as the lease cannot be had");
    (void)code;
    return ABI_SYSTEM_NOT_READY;
}

/* Counts the call, if it brings the input of the program's next job, or takes the output of its
 * last one, and says whether it goes without the lease. To ask for that would cost as much as the
 * job, keep the device from others until the program is seen to be idle, and end the copies ahead
 * for the job that follows. What others' copies wait for it is part of what a job is charged
 * (tierline_api/devices/overheads.py), so it is no more than MOST_TRANSFERRED a job. */
static bool passes_between_jobs(const struct tierline_call *call) {
    return call->transferred > 0 && call->transferred <= MOST_TRANSFERRED &&
           atomic_load(&tl_gates.says_jobs) && !atomic_load(&tl_drain_watching) &&
           !tl_yields_standing() &&
           atomic_fetch_add(&tl_gates.transferred, call->transferred) <=
               MOST_TRANSFERRED - call->transferred;
}

static int pass(struct tierline_call *call) {
    atomic_fetch_add(&tl_gates.begun, 1);
    atomic_fetch_add(&tl_gates.passing, 1);
    if (atomic_load(&tl_gates.leased) && !tl_yields_standing() && tl_window_knows(call->function)) {
        call->held = PASSING;
        return ABI_SUCCESS;
    }
    atomic_fetch_sub(&tl_gates.passing, 1);
    if (passes_between_jobs(call)) {
        return ABI_SUCCESS;
    }
    tl_lock_acquire(&tl_gates.lock);
    tierline_client *client = tl_gates.client;
    int code = client == NULL ? 0 : tl_gates_hold(client, TIERLINE_NO_ARENA);
    int result = code == 0 ? (int)ABI_SUCCESS : refuse(code);
    if (code == 0 && client != NULL) {
        result = window_result(tl_window_meet(client, call->function));
    }
    if (result == ABI_SUCCESS) {
        atomic_fetch_add(&tl_gates.passing, 1);
        call->held = PASSING;
    }
    tl_lock_release(&tl_gates.lock);
    return result;
}

/* The window learns what the call names, and which function it launches. 0 or a code. */
static int meet(tierline_client *client, const struct tierline_call *call) {
    int code = 0;
    tl_window_turn();
    for (uint32_t i = 0; i < call->weight_count && code == 0; i++) {
        const struct tl_watched *watched = tl_watch_find(call->generation, call->weights[i]);
        if (watched != NULL && tl_gates_sealed(watched->arena)) {
            const struct tl_arena *arena = &client->arenas[watched->arena];
            code = tl_window_name(watched->arena, &arena->on_device.weights[watched->weight]);
        }
    }
    return code == 0 ? tl_window_meet(client, call->function) : code;
}

/* Under the lock; the call names weights, at first one of this arena. */
static int begin_named(struct tierline_call *call, uint32_t first) {
    tierline_client *client = tl_gates.client;
    atomic_fetch_add(&tl_gates.begun, 1);
    int code = tl_gates_hold(client, first);
    if (code != 0) {
        return refuse(code);
    }
    code = meet(client, call);
    if (code != 0) {
        return window_result(code);
    }
    if (call->graph) { /* launch_graphs.c serves it */
        return window_result(tl_window_show(client));
    }
    /* A kernel that a program launches outside its jobs may be one that changes weights. */
    bool outside_jobs = tl_gates.implicit && atomic_load(&tl_gates.says_jobs);
    if (call->written || (outside_jobs && call->function != NULL)) {
        return tl_gates_let_write(client, call->generation, call->weights, call->weight_count);
    }
    if (call->addresses) {
        int result = tl_gates_keep(client, call->generation, call->weights, call->weight_count);
        return result == ABI_SUCCESS ? window_result(tl_window_show(client)) : result;
    }
    /* Only now, as taking the lease drops private copies. */
    struct named named[TIERLINE_MAX_ARENAS];
    uint32_t arenas = collect(client, call, named);
    int result = ABI_SUCCESS;
    for (uint32_t a = 0; a < TIERLINE_MAX_ARENAS && result == ABI_SUCCESS; a++) {
        if ((arenas & (1U << a)) != 0) {
            result = serve(client, call, a, &named[a]);
        }
    }
    return result == ABI_SUCCESS ? window_result(tl_window_show(client)) : result;
}

/* Holds the lease for the call until its end, and puts before it what it waits for. */
static int lease(struct tierline_call *call) {
    if (call->weight_count == 0) {
        return call->held == 0 ? pass(call) : (int)ABI_SUCCESS;
    }
    if (call->held == PASSING) { /* launches of one list, of which only later ones name weights */
        atomic_fetch_sub(&tl_gates.passing, 1);
        call->held = 0;
    }
    if (call->held == 0) {
        tl_lock_acquire(&tl_gates.lock);
        atomic_fetch_add(&tl_gates.named, 1);
        tl_gates.at_driver = NULL;
        tl_gates.pass.stream = NULL;
        call->held = LOCKED;
    }
    const tierline_client *client = tl_gates.client;
    uint32_t first = client != NULL ? first_arena(call) : TIERLINE_NO_ARENA;
    if (first == TIERLINE_NO_ARENA) { /* the program's own weights: nothing is known of them here */
        tl_lock_release(&tl_gates.lock);
        call->held = 0;
        return pass(call);
    }
    int result = begin_named(call, first);
    if (result != ABI_SUCCESS) {
        call->held = 0;
        tl_lock_release(&tl_gates.lock);
    }
    return result;
}

/* Addresses come to the device, and weights are written, whenever the graph runs; but no copy can
 * be made during a capture. */
static int begin_captured_change(const struct tierline_call *call) {
    tl_lock_acquire(&tl_gates.lock);
    const tierline_client *client = tl_gates.client;
    bool stay = client == NULL || first_arena(call) == TIERLINE_NO_ARENA ||
                (!call->written &&
                 tl_gates_stay(client, call->generation, call->weights, call->weight_count));
    tl_lock_release(&tl_gates.lock);
    return stay ? (int)ABI_SUCCESS : (int)ABI_CAPTURE_UNSUPPORTED;
}

static int begin(struct tierline_call *call) {
    int failed = atomic_load(&tl_gates.failed);
    if (failed != ABI_SUCCESS) {
        return failed;
    }
    if (call->captured) {
        return call->addresses || call->written ? begin_captured_change(call) : (int)ABI_SUCCESS;
    }
    int result = lease(call);
    if (result == ABI_SUCCESS) {
        tl_window_note(call->function);
    }
    if (result == ABI_SUCCESS && atomic_load_explicit(&tl_drain_watching, memory_order_relaxed)) {
        tl_drain_note(call->stream, call->per_thread);
    }
    return result;
}

static void end(struct tierline_call *call) {
    tl_drain_after();
    if (call->held == PASSING) {
        atomic_fetch_sub(&tl_gates.passing, 1);
    } else {
        if (call->launched) {
            tl_graph_launched();
        }
        if (tl_gates.at_driver != NULL) {
            tl_stream_after(tl_gates.at_driver); /* a failure shows at the next call */
        }
        tl_lock_release(&tl_gates.lock);
    }
    call->held = 0;
}

static void leave(void *stream, bool per_thread) {
    tl_lock_acquire(&tl_gates.lock);
    tl_stream_leave(stream, per_thread);
    tl_drain_leave(stream, per_thread);
    tl_lock_release(&tl_gates.lock);
}

const struct own_gate tl_launch_gate = {
    .begin = begin, .end = end, .leave = leave, .graphs = &tl_launch_graphs};
