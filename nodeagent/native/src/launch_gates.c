/* See launch_gates.h.
 *
 * A call that names weights passes under the gates' lock: what comes before it, the call itself and
 * what comes behind it stand in one order, also among threads. Before it, on its own stream, what
 * skipped layers would have read is given back, and the stream waits for what the call needs, if
 * this stream has not yet; behind it what no later layer reads is given back. The CPU never waits.
 *
 * What cannot go with the stream (order.h) reads the arena from the start again if that is where it
 * begins, else it gets private copies of its extents; both wait for the GPU first. A call without
 * weights only needs the lease.
 *
 * Invariant: no call reads a streamed extent unless its stream has waited for it in this pass, or
 * it has a private copy; `consumed` never passes what issued work may still read.
 */
#include "launch_gates.h"

#include "cuda.h"
#include "device_memory.h"
#include "gate.h"
#include "launch_state.h"
#include "observer.h"
#include "order.h"
#include "streams.h"
#include "watch.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define LATEST_NS (1ULL << 62)
#define PASSING_PAUSE_NS 20000
#define MOST_SENTENCES 10
#define ENDED_WORD 0x7fffffffU /* at least every count, as waits compare */
/* A private copy costs a round trip and a wait for the GPU: about so many streamed extents. */
#define COPY_COST 4U

enum { PASSING = 1, LOCKED = 2 };

struct tl_gates tl_gates;

/* What the call that is at the driver gives back when it is there; under the lock. */
static struct {
    struct tl_stream *stream;
    uint64_t consumed; /* address */
    uint32_t releases;
} behind;

/* What a call names of one arena. */
struct named {
    struct tl_span all, open;
    uint32_t copies; /* streamed extents without a private copy */
};

static void say(const char *what) {
    static atomic_int said;
    if (atomic_fetch_add(&said, 1) < MOST_SENTENCES) {
        fprintf(stderr, "tierline: %s: %s\n", what, tierline_last_error());
    }
}

/* ---- the lease, under the gates' lock */

static void *any_context(const tierline_client *client) {
    for (uint32_t a = 0; a < TIERLINE_MAX_ARENAS; a++) {
        if (client->arenas[a].state == TL_ARENA_SEALED) {
            return client->arenas[a].on_device.context;
        }
    }
    return NULL;
}

/* The only sealed arena, or none. */
static uint32_t only_arena(const tierline_client *client) {
    uint32_t found = TIERLINE_NO_ARENA;
    for (uint32_t a = 0; a < TIERLINE_MAX_ARENAS; a++) {
        if (client->arenas[a].state == TL_ARENA_SEALED) {
            if (found != TIERLINE_NO_ARENA) {
                return TIERLINE_NO_ARENA;
            }
            found = a;
        }
    }
    return found;
}

static int drop_copies(struct tl_arena *arena) {
    if (arena->on_device.private_count == 0) {
        return 0;
    }
    if (!tl_cuda_enter(arena->on_device.context)) {
        return tl_fail(TIERLINE_E_SYSTEM, "an arena's CUDA context is gone");
    }
    int code = tl_arena_reset(arena);
    tl_cuda_leave();
    return code;
}

/* The state of a job that was granted, whose GPU has no work yet. */
static int take_job(tierline_client *client, uint64_t number, uint32_t arena) {
    int code = 0;
    for (uint32_t a = 0; a < TIERLINE_MAX_ARENAS && code == 0; a++) {
        if (client->arenas[a].state == TL_ARENA_SEALED) {
            code = drop_copies(&client->arenas[a]);
        }
    }
    tl_gates.job = number;
    tl_gates.arena = arena;
    tl_gates.implicit = false;
    tl_gates.cursor = (struct tl_cursor){0};
    tl_gates.streamed = 0;
    atomic_store(&tl_gates.highest, 0);
    atomic_store(&tl_gates.orphaned, false);
    tl_streams_restart();
    atomic_store(&tl_gates.leased, true);
    tl_monitor_wake();
    return code;
}

int tl_gates_end_locked(tierline_client *client, uint64_t job, uint64_t workspace_peak_bytes) {
    tl_lock_acquire(&client->lock);
    bool running = client->job.granted && client->job.number == job;
    tl_lock_release(&client->lock);
    if (!running) {
        return tl_fail(TIERLINE_E_STATE, "ending job %llu: it is not in progress",
                       (unsigned long long)job);
    }
    atomic_store(&tl_gates.leased, false);
    while (atomic_load(&tl_gates.passing) > 0) {
        nanosleep(&(struct timespec){.tv_nsec = PASSING_PAUSE_NS}, NULL);
    }
    int result = ABI_SUCCESS;
    void *context = any_context(client);
    if (context != NULL && tl_cuda_enter(context)) {
        result = tl_cuda_synchronise();
        tl_cuda_leave();
    }
    if (result == ABI_CAPTURE_UNSUPPORTED) {
        atomic_store(&tl_gates.leased, true);
        return tl_fail(TIERLINE_E_STATE,
                       "ending job %llu: a stream is being captured; end the capture first",
                       (unsigned long long)job);
    }
    tl_lock_acquire(&client->lock);
    client->job.stats.streamed_extents = tl_gates.streamed + atomic_load(&tl_gates.highest);
    int code = tl_job_end(client, job, workspace_peak_bytes);
    tl_lock_release(&client->lock);
    tl_gates.job = 0;
    tl_gates.implicit = false;
    return code == 0 ? tl_cuda_check(result, "waiting for the GPU at the end of a job") : code;
}

bool tl_gates_idle(const tierline_client *client) {
    void *context = any_context(client);
    if (context == NULL || !tl_cuda_enter(context)) {
        return true;
    }
    bool idle = tl_streams_idle();
    tl_cuda_leave();
    return idle;
}

/* Whose job runs: 0 with its state taken, TL_BUSY if none does, or a code. */
static int look_at_job(tierline_client *client) {
    tl_lock_acquire(&client->lock);
    while (client->job.active && !client->job.granted) {
        tl_event_wait(&client->changed, &client->lock, TL_FOREVER);
    }
    struct tl_job job = client->job;
    tl_lock_release(&client->lock);
    if (!job.granted) {
        return TL_BUSY;
    }
    return job.number == tl_gates.job ? 0 : take_job(client, job.number, job.arena);
}

/* Makes sure that this process holds the lease, with the stream of `wanted` if the choice is the
 * library's. 0 or a code. */
static int hold_lease(tierline_client *client, uint32_t wanted) {
    for (;;) {
        int code = look_at_job(client);
        if (code == 0 && tl_gates.implicit && wanted != TIERLINE_NO_ARENA &&
            wanted != tl_gates.arena) {
            code = tl_gates_end_locked(client, tl_gates.job, 0);
            code = code == 0 ? TL_BUSY : code;
        }
        if (code != TL_BUSY) {
            return code;
        }
        uint64_t now_ns = tl_now_ns();
        uint64_t deadline_ns = client->terms.deadline_ns;
        struct tlp_job_begin asked = {
            .arena = wanted != TIERLINE_NO_ARENA ? wanted : only_arena(client),
            .release_ns = now_ns,
            .deadline_ns = deadline_ns == 0 ? LATEST_NS : now_ns + deadline_ns};
        tl_lock_acquire(&client->lock);
        code = tl_job_begin(client, &asked, false);
        uint64_t number = client->job.number;
        tl_lock_release(&client->lock);
        if (code == 0) {
            code = take_job(client, number, asked.arena);
            tl_gates.implicit = true;
        }
        if (code != TL_BUSY) {
            return code;
        }
    }
}

static bool streams(uint32_t index) {
    return index == tl_gates.arena && !atomic_load(&tl_gates.orphaned);
}

/* ---- what cannot go with the stream, under the gates' lock */

static int fetch_extent(tierline_client *client, uint32_t index, uint32_t extent, uint8_t *buffer) {
    struct tl_arena *arena = &client->arenas[index];
    uint64_t begin_ns = tl_now_ns();
    tl_lock_acquire(&client->lock);
    int code = tl_fetch_bytes(client, index, extent, buffer);
    if (code == 0) {
        client->job.stats.stall_ns += tl_now_ns() - begin_ns;
        client->job.stats.fetched_bytes += tl_extent_length(arena, extent);
    }
    tl_lock_release(&client->lock);
    return code == 0 ? tl_device_replace(arena, extent, buffer, arena->lengths[extent]) : code;
}

/* Gives the streamed extents of these weights private copies. A CUresult. */
static int fetch_weights(tierline_client *client, uint32_t index, uint64_t generation,
                         const uint32_t *weights, uint32_t count) {
    struct tl_arena *arena = &client->arenas[index];
    uint8_t *buffer = NULL;
    int code = tl_cuda_enter(arena->on_device.context)
                   ? 0
                   : tl_fail(TIERLINE_E_SYSTEM, "an arena's CUDA context is gone");
    if (code != 0) {
        return ABI_INVALID_CONTEXT;
    }
    int result = ABI_SUCCESS;
    for (uint32_t i = 0; i < count && code == 0 && result == ABI_SUCCESS; i++) {
        const struct tl_watched *watched = tl_watch_find(generation, weights[i]);
        if (watched == NULL || watched->arena != index) {
            continue;
        }
        const struct tl_weight *weight = &arena->on_device.weights[watched->weight];
        for (uint32_t e = weight->first; e <= weight->last && code == 0; e++) {
            if (arena->stream_index[e] == TL_NOT_STREAMED ||
                arena->states[e] == TL_EXTENT_PRIVATE) {
                continue;
            }
            if (buffer == NULL) {
                result = tl_cuda_synchronise();
                buffer = result == ABI_SUCCESS ? malloc(arena->extent_bytes) : NULL;
                if (buffer == NULL) {
                    result = result == ABI_SUCCESS ? (int)ABI_OUT_OF_MEMORY : result;
                    break;
                }
            }
            code = fetch_extent(client, index, e, buffer);
        }
    }
    free(buffer);
    tl_cuda_leave();
    if (code != 0) {
        say("a launch is refused, as its weights cannot be had");
        return ABI_SYSTEM_NOT_READY;
    }
    return result;
}

/* The job reads its arena from the start again. 0 or a code. */
static int rewind_locked(tierline_client *client) {
    struct tl_arena *arena = &client->arenas[tl_gates.arena];
    if (!tl_cuda_enter(arena->on_device.context)) {
        return tl_fail(TIERLINE_E_SYSTEM, "an arena's CUDA context is gone");
    }
    int code = tl_cuda_check(tl_cuda_synchronise(), "waiting for the GPU to begin a pass again");
    tl_cuda_leave();
    if (code != 0) {
        return code;
    }
    tl_lock_acquire(&client->lock);
    code = tl_job_rewind(client);
    tl_lock_release(&client->lock);
    if (code != 0) {
        return code;
    }
    tl_gates.streamed += atomic_exchange(&tl_gates.highest, 0);
    tl_gates.cursor = (struct tl_cursor){0};
    tl_streams_restart();
    return arena->on_device.private_count >= arena->ring_slots ? drop_copies(arena) : 0;
}

/* Whether going back to the start costs less than copies of what the call reads, or there is no
 * more room for copies. */
static bool worth_rewinding(const struct tl_arena *arena, const struct named *named) {
    return named->open.needs - named->open.lowest <= arena->ring_slots &&
           (named->open.lowest <= COPY_COST * named->copies ||
            arena->on_device.private_count + named->copies > arena->ring_slots);
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

static int give_back(struct tl_stream *stream, const struct tl_arena *arena, uint32_t value) {
    if (value <= tl_gates.cursor.consumed) {
        return ABI_SUCCESS;
    }
    int result = tl_stream_give_back(stream, arena->on_device.consumed, value);
    tl_gates.cursor.consumed = result == ABI_SUCCESS ? value : tl_gates.cursor.consumed;
    return result;
}

/* Says what streams are going to wait for, unless the job was revoked: then false. */
static bool announce(uint32_t needs) {
    uint32_t before = atomic_load(&tl_gates.highest);
    if (needs > before) {
        atomic_store(&tl_gates.highest, needs);
    }
    if (atomic_load(&tl_gates.orphaned)) {
        atomic_store(&tl_gates.highest, before);
        return false;
    }
    return true;
}

static int go_with_the_stream(struct tierline_call *call, const struct tl_arena *arena,
                              const struct tl_need *need, uint32_t layer) {
    struct tl_stream *stream = tl_stream_of(call->stream, call->per_thread);
    if (stream == NULL) {
        return ABI_CAPTURE_UNSUPPORTED;
    }
    if (need->streamed && call->unloaded) {
        load_code(call);
    }
    int result = give_back(stream, arena, need->keeps);
    if (need->streamed && result == ABI_SUCCESS) {
        result = tl_stream_wait(stream, arena->on_device.published, need->needs);
        tl_stream_reads(stream, need->lowest);
    }
    tl_gates.cursor.layer = layer;
    behind.stream = stream;
    behind.consumed = arena->on_device.consumed;
    behind.releases = need->releases;
    return result;
}

static int serve(tierline_client *client, struct tierline_call *call, uint32_t index,
                 const struct named *named) {
    const struct tl_arena *arena = &client->arenas[index];
    if (streams(index)) {
        struct tl_need need;
        struct tl_cursor cursor = tl_gates.cursor;
        bool goes = tl_order_need(arena, named->all, named->open, &cursor, &need);
        if (!goes && worth_rewinding(arena, named) && rewind_locked(client) == 0) {
            cursor = tl_gates.cursor;
            goes = tl_order_need(arena, named->all, named->open, &cursor, &need);
        }
        if (goes && announce(need.needs)) {
            return go_with_the_stream(call, arena, &need, cursor.layer);
        }
    }
    return fetch_weights(client, index, call->generation, call->weights, call->weight_count);
}

/* What the call names, arena by arena; a bit an arena. */
static uint32_t collect(const tierline_client *client, const struct tierline_call *call,
                        struct named named[TIERLINE_MAX_ARENAS], uint32_t *first) {
    uint32_t arenas = 0;
    for (uint32_t i = 0; i < call->weight_count; i++) {
        const struct tl_watched *watched = tl_watch_find(call->generation, call->weights[i]);
        if (watched == NULL || client->arenas[watched->arena].state != TL_ARENA_SEALED) {
            continue;
        }
        const struct tl_arena *arena = &client->arenas[watched->arena];
        const struct tl_weight *weight = &arena->on_device.weights[watched->weight];
        struct named *of = &named[watched->arena];
        if (arenas == 0) {
            *first = watched->arena;
        }
        if ((arenas & (1U << watched->arena)) == 0) {
            *of = (struct named){0};
        }
        arenas |= 1U << watched->arena;
        tl_span_add(&of->all, arena, weight, true);
        tl_span_add(&of->open, arena, weight, false);
        for (uint32_t e = weight->first; e <= weight->last; e++) {
            of->copies +=
                arena->stream_index[e] != TL_NOT_STREAMED && arena->states[e] != TL_EXTENT_PRIVATE;
        }
    }
    return arenas;
}

/* ---- the gate */

static int refuse(int code) {
    say("a call is refused, as the lease cannot be had");
    (void)code;
    return ABI_SYSTEM_NOT_READY;
}

static int pass(struct tierline_call *call) {
    atomic_fetch_add(&tl_gates.begun, 1);
    atomic_fetch_add(&tl_gates.passing, 1);
    if (atomic_load(&tl_gates.leased)) {
        call->held = PASSING;
        return ABI_SUCCESS;
    }
    atomic_fetch_sub(&tl_gates.passing, 1);
    tl_lock_acquire(&tl_gates.lock);
    int code = tl_gates.client == NULL ? 0 : hold_lease(tl_gates.client, TIERLINE_NO_ARENA);
    if (code == 0) {
        atomic_fetch_add(&tl_gates.passing, 1);
        call->held = PASSING;
    }
    tl_lock_release(&tl_gates.lock);
    return code == 0 ? (int)ABI_SUCCESS : refuse(code);
}

/* Under the lock, with `arenas` named. */
static int begin_named(struct tierline_call *call, struct named named[TIERLINE_MAX_ARENAS],
                       uint32_t first) {
    tierline_client *client = tl_gates.client;
    atomic_fetch_add(&tl_gates.begun, 1);
    int code = hold_lease(client, first);
    if (code != 0) {
        return refuse(code);
    }
    /* Taking the lease may have dropped private copies. */
    uint32_t arenas = collect(client, call, named, &first);
    int result = ABI_SUCCESS;
    for (uint32_t a = 0; a < TIERLINE_MAX_ARENAS && result == ABI_SUCCESS && !call->graph; a++) {
        if ((arenas & (1U << a)) != 0) {
            result = serve(client, call, a, &named[a]);
        }
    }
    return result;
}

static int begin(struct tierline_call *call) {
    int failed = atomic_load(&tl_gates.failed);
    if (failed != ABI_SUCCESS) {
        return failed;
    }
    if (call->captured) {
        return ABI_SUCCESS;
    }
    if (call->weight_count == 0) {
        return call->held == 0 ? pass(call) : (int)ABI_SUCCESS;
    }
    if (call->held == PASSING) { /* launches of one list, of which only later ones name weights */
        atomic_fetch_sub(&tl_gates.passing, 1);
        call->held = 0;
    }
    if (call->held == 0) {
        tl_lock_acquire(&tl_gates.lock);
        behind.stream = NULL;
        call->held = LOCKED;
    }
    struct named named[TIERLINE_MAX_ARENAS];
    uint32_t first = TIERLINE_NO_ARENA;
    int result = ABI_SUCCESS;
    if (tl_gates.client != NULL && collect(tl_gates.client, call, named, &first) != 0) {
        result = begin_named(call, named, first);
    } else { /* the program's own weights, of which nothing is known here */
        tl_lock_release(&tl_gates.lock);
        call->held = 0;
        return pass(call);
    }
    if (result != ABI_SUCCESS) {
        call->held = 0;
        tl_lock_release(&tl_gates.lock);
    }
    return result;
}

static void end(struct tierline_call *call) {
    if (call->held == PASSING) {
        atomic_fetch_sub(&tl_gates.passing, 1);
    } else {
        /* A failure here costs room in the ring, and shows at the next call. */
        if (behind.stream != NULL) {
            if (behind.releases > tl_gates.cursor.consumed &&
                tl_stream_give_back(behind.stream, behind.consumed, behind.releases) ==
                    ABI_SUCCESS) {
                tl_gates.cursor.consumed = behind.releases;
            }
            tl_stream_after(behind.stream);
        }
        tl_lock_release(&tl_gates.lock);
    }
    call->held = 0;
}

static void leave(void *stream, bool per_thread) {
    tl_lock_acquire(&tl_gates.lock);
    tl_stream_leave(stream, per_thread);
    tl_lock_release(&tl_gates.lock);
}

/* ---- graphs */

static struct tl_span span_of(uint32_t index, uint64_t generation, const uint32_t *weights,
                              uint32_t count) {
    const struct tl_arena *arena = &tl_gates.client->arenas[index];
    struct tl_span span = {0};
    for (uint32_t i = 0; i < count; i++) {
        const struct tl_watched *watched = tl_watch_find(generation, weights[i]);
        if (watched != NULL && watched->arena == index) {
            tl_span_add(&span, arena, &arena->on_device.weights[watched->weight], true);
        }
    }
    return span;
}

static bool graph_arena(uint64_t generation, const uint32_t *weights, uint32_t count,
                        uint32_t *arena) {
    for (uint32_t i = 0; i < count; i++) {
        const struct tl_watched *watched = tl_watch_find(generation, weights[i]);
        if (watched != NULL) {
            *arena = watched->arena;
            return true;
        }
    }
    return false;
}

static bool graph_words(uint32_t index, uint64_t *published, uint64_t *consumed) {
    const struct tl_arena *arena = &tl_gates.client->arenas[index];
    *published = arena->on_device.published;
    *consumed = arena->on_device.consumed;
    return arena->state == TL_ARENA_SEALED;
}

static uint32_t graph_ring(uint32_t index) {
    return tl_gates.client->arenas[index].ring_slots;
}

static bool graph_span(uint32_t index, uint64_t generation, uint32_t weight, uint32_t *first,
                       uint32_t *past) {
    const struct tl_watched *watched = tl_watch_find(generation, weight);
    struct tl_span span = span_of(index, generation, &weight, 1);
    *first = span.lowest;
    *past = span.needs;
    return watched != NULL && watched->arena == index;
}

static void graph_start(uint32_t index, uint64_t generation, const uint32_t *weights,
                        uint32_t count, struct tl_cursor *cursor) {
    tl_order_find(&tl_gates.client->arenas[index], span_of(index, generation, weights, count),
                  cursor);
}

static bool graph_need(uint32_t index, uint64_t generation, const uint32_t *weights, uint32_t count,
                       struct tl_cursor *cursor, struct tl_need *out) {
    struct tl_span span = span_of(index, generation, weights, count);
    return tl_order_need(&tl_gates.client->arenas[index], span, span, cursor, out);
}

/* A graph that streams nothing: all it reads is private, and its waits are over before they begin.
 */
static int launch_aside(tierline_client *client, const struct tl_graph_plan *plan) {
    struct tl_arena *arena = &client->arenas[plan->arena];
    int result =
        fetch_weights(client, plan->arena, plan->generation, plan->weights, plan->weight_count);
    if (result == ABI_SUCCESS && plan->needs > 0) {
        result = tl_cuda_synchronise(); /* others may wait for the stream's own progress */
        if (result == ABI_SUCCESS) {
            tierline_word_publish(&arena->control->published, ENDED_WORD);
        }
    }
    return result;
}

static int launch_plan(tierline_client *client, const struct tl_graph_plan *plan, void *handle,
                       bool per_thread) {
    struct tl_arena *arena = &client->arenas[plan->arena];
    bool streamed = plan->needs > 0;
    if (streamed && streams(plan->arena) && plan->lowest < tl_gates.cursor.consumed &&
        rewind_locked(client) != 0) {
        return launch_aside(client, plan);
    }
    if (!streams(plan->arena)) {
        return launch_aside(client, plan);
    }
    int result =
        fetch_weights(client, plan->arena, plan->generation, plan->loose, plan->loose_count);
    if (result != ABI_SUCCESS || !streamed) {
        return result;
    }
    struct tl_stream *stream = tl_stream_of(handle, per_thread);
    if (stream == NULL) {
        return ABI_CAPTURE_UNSUPPORTED;
    }
    if (!announce(plan->needs)) {
        return launch_aside(client, plan);
    }
    result = give_back(stream, arena, plan->consumed_before);
    if (result == ABI_SUCCESS && plan->consumed > 0) {
        result = tl_stream_join(stream, plan->consumed);
    }
    if (result == ABI_SUCCESS) {
        tl_stream_reads(stream, plan->lowest);
        behind.stream = stream;
        behind.releases = 0;
        tl_stream_waited(stream, plan->needs);
        tl_gates.cursor.layer = plan->layer;
        tl_gates.cursor.consumed =
            plan->consumed > tl_gates.cursor.consumed ? plan->consumed : tl_gates.cursor.consumed;
    }
    return result;
}

static int graph_launch(const struct tl_graph_plan *plans, uint32_t count, void *stream,
                        bool per_thread) {
    int result = ABI_SUCCESS;
    for (uint32_t i = 0; i < count && result == ABI_SUCCESS; i++) {
        result = launch_plan(tl_gates.client, &plans[i], stream, per_thread);
    }
    return result;
}

static const struct tl_graph_gates graphs = {.arena = graph_arena,
                                             .words = graph_words,
                                             .ring = graph_ring,
                                             .span = graph_span,
                                             .start = graph_start,
                                             .need = graph_need,
                                             .launch = graph_launch};

static const struct own_gate gates = {
    .begin = begin, .end = end, .leave = leave, .graphs = &graphs};

/* ---- the client's verbs */

int tl_gates_adopt(tierline_client *client) {
    int code = 0;
    tl_lock_acquire(&tl_gates.lock);
    if (tl_gates.client != NULL) {
        code = tl_fail(TIERLINE_E_STATE, "connecting to the agent: this process has a client on a "
                                         "GPU already; close it first");
    } else {
        tl_gates.client = client;
        tl_gates.job = 0;
        atomic_store(&tl_gates.failed, 0);
    }
    tl_lock_release(&tl_gates.lock);
    return code;
}

int tl_gates_settle(tierline_client *client) {
    int code = 0;
    tl_lock_acquire(&tl_gates.lock);
    if (tl_gates.client == client && tl_gates.job != 0 && tl_gates.implicit) {
        code = tl_gates_end_locked(client, tl_gates.job, 0);
    }
    tl_lock_release(&tl_gates.lock);
    return code;
}

void tl_gates_disown(const tierline_client *client) {
    tl_lock_acquire(&tl_gates.lock);
    bool ours = tl_gates.client == client;
    if (ours) {
        gate_own(NULL);
        uint64_t generation;
        observer_watch_own(NULL, 0, &generation);
    }
    tl_lock_release(&tl_gates.lock);
    if (ours) {
        tl_monitor_stop();
        tl_lock_acquire(&tl_gates.lock);
        tl_gates.client = NULL;
        tl_gates.job = 0;
        atomic_store(&tl_gates.leased, false);
        tl_watch_forget();
        tl_lock_release(&tl_gates.lock);
    }
}

int tl_gates_show(tierline_client *client) {
    tl_lock_acquire(&tl_gates.lock);
    void *context = any_context(client);
    int code = tl_watch_show(client);
    if (code == 0 && context != NULL) {
        code = tl_cuda_enter(context)
                   ? tl_streams_open()
                   : tl_fail(TIERLINE_E_SYSTEM, "an arena's CUDA context is gone");
        tl_cuda_leave();
        code = code == 0 ? tl_monitor_start() : code;
    }
    if (code == 0) {
        gate_own(context != NULL ? &gates : NULL);
    }
    tl_lock_release(&tl_gates.lock);
    return code;
}

int tl_gates_job_begin(tierline_client *client, const struct tlp_job_begin *asked, uint64_t *job) {
    int code = tl_gates_settle(client);
    if (code != 0) {
        return code;
    }
    tl_lock_acquire(&client->lock);
    code = tl_job_begin(client, asked, true);
    *job = client->job.number;
    tl_lock_release(&client->lock);
    if (code != 0) {
        return code;
    }
    tl_lock_acquire(&tl_gates.lock);
    code = tl_gates.job == *job ? 0 : take_job(client, *job, asked->arena);
    tl_lock_release(&tl_gates.lock);
    return code;
}

int tl_gates_job_end(tierline_client *client, uint64_t job, uint64_t workspace_peak_bytes) {
    tl_lock_acquire(&tl_gates.lock);
    int code = tl_gates_end_locked(client, job, workspace_peak_bytes);
    tl_lock_release(&tl_gates.lock);
    return code;
}

int tl_gates_rewind(tierline_client *client) {
    tl_lock_acquire(&tl_gates.lock);
    int code = look_at_job(client);
    if (code != 0 || tl_gates.arena == TIERLINE_NO_ARENA) {
        code = tl_fail(TIERLINE_E_STATE, "rewinding: no job with an arena is in progress");
    }
    code = code == 0 ? rewind_locked(client) : code;
    tl_lock_release(&tl_gates.lock);
    return code;
}

void tl_gates_revoked(void) {
    atomic_store(&tl_gates.orphaned, true);
    tl_monitor_wake();
}

void tl_gates_forget(void) {
    tl_gates = (struct tl_gates){0};
    tl_streams_forget();
    tl_watch_forget();
}
