/* See launch_yields.h. */
#include "lease/launch_yields.h"

#include "cuda/stream_marks.h"
#include "driver/abi.h"
#include "jobs/job.h"
#include "jobs/yields.h"
#include "lease/launch_state.h"

#include <stdio.h>
#include <time.h>

#define EVERY_GATE 0x7fffffffU /* waits compare cyclically */
#define LOOK_NS 10000U

/* The GPU writes `arrived` and reads `permit`: in different cache lines. */
struct words {
    uint32_t arrived, permit; /* marks */
};
static const struct words of_stream = {TL_MARKS_OF_GATES, TL_MARKS_OF_GATES + 16};
static const struct words of_graph = {TL_MARKS_OF_GATES + 32, TL_MARKS_OF_GATES + 48};

static struct {
    atomic_bool standing;
    atomic_bool spread; /* over several streams */
    /* Under the client's lock. */
    uint64_t job;            /* whose gates are counted; 0: none */
    bool stopping;           /* the GPU was told to stand at one of these: */
    uint32_t gate, in_graph; /* of the stream's, of the graph's */
    /* Under the gates' lock. */
    uint32_t count;
    const struct tl_stream *stream;
} yields;

bool tl_yields_may(const tierline_client *client) {
    return (client->terms.flags & TIERLINE_TERMS_PREEMPTIBLE) != 0;
}

bool tl_yields_in_graphs(const tierline_client *client, uint64_t *arrived, uint64_t *permit) {
    if (!tl_yields_may(client)) {
        return false;
    }
    *arrived = tl_mark_address(of_graph.arrived);
    *permit = tl_mark_address(of_graph.permit);
    return true;
}

/* Under the client's lock. */
static void go_on(void) {
    tl_mark_set(of_graph.permit, EVERY_GATE);
    tl_mark_set(of_stream.permit, EVERY_GATE);
    yields.stopping = false;
}

void tl_yields_begin(tierline_client *client, uint64_t job) {
    yields.count = 0;
    yields.stream = NULL;
    tl_lock_acquire(&client->lock);
    tl_mark_set(of_stream.arrived, 0);
    tl_mark_set(of_graph.arrived, 0);
    go_on();
    yields.job = job;
    atomic_store(&yields.spread, false);
    tl_lock_release(&client->lock);
}

bool tl_yields_standing(void) {
    return atomic_load(&yields.standing);
}

/* Either the monitor sees this before it gives the device away, or that is waited for here. */
static void spread(tierline_client *client) {
    atomic_store(&yields.spread, true);
    tl_lock_acquire(&client->lock);
    tl_job_await_return(client);
    tl_lock_release(&client->lock);
}

void tl_yields_enter(tierline_client *client, const struct tl_stream *stream) {
    if (!tl_yields_may(client) || atomic_load(&yields.spread)) {
        return;
    }
    if (yields.stream != NULL && yields.stream != stream) {
        spread(client);
    }
    yields.stream = stream;
}

int tl_yields_gate(tierline_client *client, const struct tl_stream *stream, bool graph) {
    if (!tl_yields_may(client) || atomic_load(&yields.spread)) {
        return ABI_SUCCESS;
    }
    bool streams = tl_gates.arena != TIERLINE_NO_ARENA;
    const struct tl_stop stop = {
        .arrived = tl_mark_address(of_stream.arrived),
        .permit = tl_mark_address(of_stream.permit),
        .reset = graph ? tl_mark_address(of_graph.arrived) : 0,
        .published = streams ? client->arenas[tl_gates.arena].on_device.published : 0,
        .number = yields.count + 1};
    int result = tl_stream_stop(stream, &stop);
    yields.count += result == ABI_SUCCESS;
    return result;
}

/* ---- the monitor */

/* Under the client's lock. */
static bool is_asked(const tierline_client *client, uint64_t job) {
    const struct tl_job *now = &client->job;
    return now->granted && !now->revoked && !now->ending && now->number == job &&
           yields.job == job && now->arena != TIERLINE_NO_ARENA && tl_yields_may(client) &&
           !atomic_load(&yields.spread) && !atomic_load(&tl_gates.stopping) &&
           __atomic_load_n(&client->arenas[now->arena].control->asked, __ATOMIC_ACQUIRE) != 0;
}

/* Returns the number of the gate at which the GPU will stand, if it gets there. */
static uint32_t stop_at_next(struct words words) {
    uint32_t passed = tl_mark_seen(words.arrived);
    for (;;) {
        tl_mark_set(words.permit, passed);
        uint32_t now = tl_mark_seen(words.arrived);
        if (now == passed) {
            return passed + 1;
        }
        passed = now;
    }
}

static bool stands(void) {
    return tl_mark_seen(of_stream.arrived) == yields.gate ||
           tl_mark_seen(of_graph.arrived) == yields.in_graph;
}

/* Under the client's lock: until the GPU stands at a gate, the job need not give the device away
 * any more, or the time is over. */
static bool await_stop(tierline_client *client, uint64_t job, uint64_t time_ns) {
    uint64_t end_ns = tl_now_ns() + time_ns;
    while (is_asked(client, job) && !stands() && tl_now_ns() < end_ns) {
        tl_lock_release(&client->lock);
        nanosleep(&(struct timespec){.tv_nsec = LOOK_NS}, NULL);
        tl_lock_acquire(&client->lock);
    }
    return is_asked(client, job) && stands();
}

/* Under the client's lock, which it releases while it waits. */
static void stand_by(tierline_client *client) {
    struct tl_job *job = &client->job;
    struct tl_arena *arena = &client->arenas[job->arena];
    job->yielding = true;
    atomic_store(&yields.standing, true);
    if (!atomic_load(&yields.spread)) {
        uint32_t consumed = __atomic_load_n(&arena->control->consumed, __ATOMIC_ACQUIRE);
        int code = tl_job_yield(client, consumed);
        if (code == TIERLINE_E_REVOKED) {
            tl_heed_revocation(client);
        }
        if (code != 0 && consumed < arena->streamed_count) {
            tl_monitor_give_up(arena); /* the ring may be others' by now */
        }
    }
    go_on();
    job->yielding = false;
    atomic_store(&yields.standing, false);
    tl_event_announce(&client->changed);
}

bool tl_yields_heed(tierline_client *client, uint64_t time_ns) {
    tl_lock_acquire(&client->lock);
    uint64_t job = client->job.number;
    if (is_asked(client, job)) {
        if (!yields.stopping) {
            yields.gate = stop_at_next(of_stream);
            yields.in_graph = stop_at_next(of_graph);
            yields.stopping = true;
        }
        if (await_stop(client, job, time_ns)) {
            stand_by(client);
        }
    }
    if (yields.stopping && !is_asked(client, job)) {
        go_on();
    }
    bool stopping = yields.stopping;
    tl_lock_release(&client->lock);
    return stopping;
}

bool tl_yields_listen(tierline_client *client, uint64_t time_ns) {
    tl_lock_acquire(&client->lock);
    const struct tl_job *job = &client->job;
    struct tl_arena *arena = NULL;
    if (job->granted && job->arena != TIERLINE_NO_ARENA && tl_yields_may(client)) {
        arena = &client->arenas[job->arena];
        arena = arena->control->asked == 0 ? arena : NULL;
    }
    if (arena != NULL) {
        const uint32_t *asked = &arena->control->asked;
        arena->users++;
        tl_lock_release(&client->lock);
        tl_futex_wait(asked, 0, time_ns, true);
        tl_lock_acquire(&client->lock);
        arena->users--;
        tl_event_announce(&client->changed);
    }
    tl_lock_release(&client->lock);
    return arena != NULL;
}

void tl_yields_forget(void) {
    atomic_store(&yields.standing, false);
    yields.job = 0;
}
