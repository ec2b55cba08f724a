/* The lease of a client on a GPU, and the verbs that concern a job.
 *
 * Invariant: a job ends only when no call is at the driver and the GPU has done all that was given
 * to it.
 */
#include "lease/launch_lease.h"

#include "cuda/cuda.h"
#include "cuda/drain.h"
#include "cuda/streams.h"
#include "jobs/job.h"
#include "launches/captures.h"
#include "lease/detours.h"
#include "lease/holdings.h"
#include "lease/launch_state.h"
#include "lease/launch_yields.h"
#include "lease/window.h"
#include "link/request.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#define LATEST_NS (1ULL << 62)
#define PASSING_PAUSE_NS 20000

/* While a stream is captured the GPU cannot be waited for: the copies, whose bytes are right, stay
 * for this job. */
static int drop_copies(struct tl_arena *arena) {
    if (tl_passing_copies(arena) == 0 || captures_any()) {
        return 0;
    }
    if (!tl_cuda_enter(arena->on_device.context)) {
        return tl_fail(TIERLINE_E_SYSTEM, "an arena's CUDA context is gone");
    }
    int code = tl_arena_reset(arena);
    tl_cuda_leave();
    return captures_any() ? 0 : code;
}

/* The state of a job that was granted, whose GPU has no work yet. */
static int take_job(tierline_client *client, uint64_t number, uint32_t arena) {
    int code = 0;
    for (uint32_t a = 0; a < TIERLINE_MAX_ARENAS && code == 0; a++) {
        struct tl_arena *of = &client->arenas[a];
        if (tl_gates_sealed(a)) {
            memset(of->on_device.returns, 0, of->extent_count * sizeof *of->on_device.returns);
            code = drop_copies(of);
        }
    }
    tl_gates.job = number;
    tl_gates.arena = arena;
    tl_gates.been = 0;
    tl_gates.implicit = false;
    tl_gates.cursor = (struct tl_cursor){0};
    tl_gates.backwards = 0;
    tl_gates.over = 0;
    tl_gates.streamed = 0;
    atomic_store(&tl_gates.highest, 0);
    atomic_store(&tl_gates.transferred, 0);
    tl_lock_acquire(&client->lock);
    /* The monitor may have heard of its end since it was granted. */
    atomic_store(&tl_gates.orphaned, client->job.number == number && client->job.revoked);
    tl_lock_release(&client->lock);
    tl_streams_restart();
    tl_drain_restart();
    tl_detours_begin();
    tl_yields_begin(client, number);
    atomic_store(&tl_gates.leased, true);
    if (tl_yields_may(client)) {
        tl_monitor_wake(); /* the agent may ask at any moment */
    } else {
        tl_monitor_stir();
    }
    return code;
}

/* A CUresult. What comes after the wait delays the next job, so it is as little as can be. */
static int await_gpu(void *context) {
    void *current = NULL;
    if (TL_CUDA(USED, cuCtxGetCurrent, &current) == ABI_SUCCESS && current == context) {
        int result = tl_cuda_synchronise();
        bool gone = result == ABI_CONTEXT_IS_DESTROYED || result == ABI_INVALID_CONTEXT;
        return gone ? (int)ABI_SUCCESS : result; /* and all work with it */
    }
    if (!tl_cuda_enter(context)) {
        return ABI_SUCCESS;
    }
    int result = tl_cuda_synchronise();
    tl_cuda_leave();
    return result;
}

/* Of the arenas that have streamed for the job. */
static uint32_t extents_of_job(const tierline_client *client) {
    uint32_t extents = 0;
    for (uint32_t a = 0; a < TIERLINE_MAX_ARENAS; a++) {
        extents += (tl_gates.been >> a & 1U) != 0 ? client->arenas[a].streamed_count : 0;
    }
    return extents;
}

/* Extents that a stream was told to wait for since the arena's stream last began. */
static uint32_t streamed_in_pass(void) {
    uint32_t highest = atomic_load(&tl_gates.highest);
    return highest > tl_gates.cursor.begins ? highest - tl_gates.cursor.begins : 0;
}

/* With the lease, and with no call at the driver. `drained`: the GPU is known to be done. */
static int end_job(tierline_client *client, uint64_t job, uint64_t workspace_peak_bytes,
                   bool drained) {
    void *context = drained ? NULL : tl_gates_context(client);
    if (!drained && context == NULL) { /* before any arena: this thread's work, if it has any */
        TL_CUDA(USED, cuCtxGetCurrent, &context);
    }
    int result = context != NULL ? await_gpu(context) : (int)ABI_SUCCESS;
    if (result == ABI_CAPTURE_UNSUPPORTED) {
        atomic_store(&tl_gates.leased, true);
        return tl_fail(TIERLINE_E_STATE,
                       "ending job %llu: a stream is being captured; end the capture first",
                       (unsigned long long)job);
    }
    tl_window_end(client, result);
    tl_lock_acquire(&client->lock);
    client->job.stats.streamed_extents = tl_gates.streamed + streamed_in_pass();
    if (!tl_gates.implicit) {
        tl_detours_end(client, client->job.stats.streamed_extents, extents_of_job(client));
    }
    int code = tl_job_end(client, job, workspace_peak_bytes);
    tl_lock_release(&client->lock);
    tl_gates.job = 0;
    tl_gates.implicit = false;
    if (code == 0 && result != ABI_SUCCESS) {
        tl_cuda_check(result, "waiting for the GPU at the end of a job");
        return TIERLINE_E_GPU;
    }
    return code;
}

static bool is_running(tierline_client *client, uint64_t job) {
    tl_lock_acquire(&client->lock);
    bool running = client->job.granted && client->job.number == job;
    tl_lock_release(&client->lock);
    return running;
}

/* With the lease: waits for the GPU and gives it back. 0, or a code after which the job is over all
 * the same, unless it is TIERLINE_E_STATE. */
static int end_locked(tierline_client *client, uint64_t job, uint64_t workspace_peak_bytes) {
    if (!is_running(client, job)) {
        return tl_fail(TIERLINE_E_STATE, "ending job %llu: it is not in progress",
                       (unsigned long long)job);
    }
    atomic_store(&tl_gates.leased, false);
    while (atomic_load(&tl_gates.passing) > 0) {
        nanosleep(&(struct timespec){.tv_nsec = PASSING_PAUSE_NS}, NULL);
    }
    return end_job(client, job, workspace_peak_bytes, false);
}

/* Whether the GPU is done with all that read weights, and as far as it is watched with the rest. */
static bool gpu_is_idle(const tierline_client *client) {
    void *context = tl_gates_context(client);
    if (context == NULL || !tl_cuda_enter(context)) {
        return true;
    }
    bool idle = tl_streams_idle() && tl_drain_done();
    tl_cuda_leave();
    return idle;
}

/* A call that comes meanwhile waits for the gates' lock, so nothing here may wait for the GPU,
 * which may be waiting for that call. */
void tl_gates_end_if_idle(tierline_client *client) {
    if (tl_gates.job == 0 || !tl_gates.implicit || !is_running(client, tl_gates.job) ||
        captures_any() || !gpu_is_idle(client)) {
        return;
    }
    atomic_store(&tl_gates.leased, false);
    /* Again, as calls came while it was looked at. */
    if (atomic_load(&tl_gates.passing) > 0 || !gpu_is_idle(client)) {
        atomic_store(&tl_gates.leased, true);
        return;
    }
    end_job(client, tl_gates.job, 0, tl_drain_sees_all());
}

/* Which job runs: 0 with its state taken, TL_BUSY if none does, or a code. Only a thread that has
 * the gates' lock ends a job, so within one there is nothing to look at, unless it gives the device
 * away. */
static int look_at_job(tierline_client *client) {
    if (atomic_load(&tl_gates.leased) && !tl_yields_standing()) {
        return 0;
    }
    tl_lock_acquire(&client->lock);
    while (client->job.active && (!client->job.granted || client->job.yielding)) {
        tl_event_wait(&client->changed, &client->lock, TL_FOREVER);
    }
    struct tl_job job = client->job;
    tl_lock_release(&client->lock);
    if (!job.granted) {
        return TL_BUSY;
    }
    return job.number == tl_gates.job ? 0 : take_job(client, job.number, job.arena);
}

int tl_gates_hold(tierline_client *client, uint32_t wanted) {
    for (;;) {
        int code = look_at_job(client);
        if (code == 0 && tl_gates.implicit && wanted != TIERLINE_NO_ARENA &&
            wanted != tl_gates.arena) {
            code = end_locked(client, tl_gates.job, 0);
            code = code == 0 ? TL_BUSY : code;
        }
        if (code != TL_BUSY) {
            return code;
        }
        uint64_t now_ns = tl_now_ns();
        uint64_t deadline_ns = client->terms.deadline_ns;
        struct tlp_job_begin asked = {
            .arena = wanted, /* what names no weights has nothing streamed for it */
            /* A program that says its jobs has no others: what it does between them is no job. */
            .flags = atomic_load(&tl_gates.says_jobs) ? TIERLINE_JOB_WARMUP : 0,
            .release_ns = now_ns,
            .deadline_ns = deadline_ns == 0 ? LATEST_NS : now_ns + deadline_ns};
        tl_lock_acquire(&client->lock);
        code = tl_job_begin(client, &asked, false);
        uint64_t number = client->job.number;
        tl_lock_release(&client->lock);
        if (code == 0) {
            code = take_job(client, number, asked.arena);
            tl_gates.implicit = true;
            if (asked.flags != 0) {
                tl_monitor_wake(); /* it looks whether others wait */
            }
        }
        if (code != TL_BUSY) {
            return code;
        }
    }
}

/* What the job issued is over when it goes, so that no word of the arena that it leaves is waited
 * for. 0 or a code. */
int tl_gates_go_to(tierline_client *client, uint32_t index, struct tl_cursor from) {
    struct tl_arena *arena = &client->arenas[index];
    if (!tl_cuda_enter(arena->on_device.context)) {
        return tl_fail(TIERLINE_E_SYSTEM, "an arena's CUDA context is gone");
    }
    int code = tl_cuda_check(tl_cuda_synchronise(), "waiting for the GPU to begin a pass again");
    tl_cuda_leave();
    if (code == 0 && tl_passing_copies(arena) >= arena->ring_slots) {
        code = drop_copies(arena);
    }
    if (code != 0) {
        return code;
    }
    tl_gates.streamed += streamed_in_pass();
    atomic_store(&tl_gates.highest, 0);
    tl_lock_acquire(&client->lock);
    code = tl_job_rewind(client, index, from.begins, from.consumed);
    tl_lock_release(&client->lock);
    if (code != 0) {
        return code;
    }
    tl_gates.arena = index;
    tl_gates.cursor = from;
    tl_gates.over = 0;
    tl_streams_restart();
    return 0;
}

int tl_gates_settle(tierline_client *client) {
    int code = 0;
    tl_lock_acquire(&tl_gates.lock);
    if (tl_gates.client == client && tl_gates.job != 0 && tl_gates.implicit) {
        code = end_locked(client, tl_gates.job, 0);
    }
    tl_lock_release(&tl_gates.lock);
    return code;
}

/* A job would read what was written where the arena streams it no more, and the next agent would
 * not know of it. */
static int check_written(const tierline_client *client) {
    for (uint32_t a = 0; a < TIERLINE_MAX_ARENAS; a++) {
        if (tl_gates_sealed(a) && client->arenas[a].on_device.written_count > 0) {
            return tl_fail(TIERLINE_E_WRITTEN,
                           "beginning a job: %u extents of arena %u may have been written; store "
                           "them again",
                           client->arenas[a].on_device.written_count, a);
        }
    }
    return 0;
}

/* Asks for a job, with the gates' lock: no call of another thread begins one meanwhile. TL_BUSY if
 * there is another explicit one, after something changed. */
static int ask(tierline_client *client, const struct tlp_job_begin *asked, uint64_t *job) {
    int code = tl_gates.client == client && tl_gates.job != 0 && tl_gates.implicit
                   ? end_locked(client, tl_gates.job, 0)
                   : 0;
    if (code != 0) {
        return code;
    }
    tl_lock_acquire(&client->lock);
    tl_holdings_settle(client);
    code = tl_job_begin(client, asked, false);
    *job = client->job.number;
    if (code == TL_BUSY) {
        tl_lock_release(&tl_gates.lock);
        tl_event_wait(&client->changed, &client->lock, TL_FOREVER);
    }
    tl_lock_release(&client->lock);
    if (code == TL_BUSY) {
        tl_lock_acquire(&tl_gates.lock);
    }
    return code;
}

int tl_gates_job_begin(tierline_client *client, const struct tlp_job_begin *asked, uint64_t *job) {
    tl_lock_acquire(&tl_gates.lock);
    int code = check_written(client);
    code = code == 0 ? TL_BUSY : code;
    while (code == TL_BUSY) {
        code = ask(client, asked, job);
    }
    if (code == 0) {
        atomic_store(&tl_gates.says_jobs, true);
        code = take_job(client, *job, asked->arena);
    }
    tl_lock_release(&tl_gates.lock);
    return code;
}

int tl_gates_job_end(tierline_client *client, uint64_t job, uint64_t workspace_peak_bytes) {
    tl_lock_acquire(&tl_gates.lock);
    int code = end_locked(client, job, workspace_peak_bytes);
    tl_lock_release(&tl_gates.lock);
    return code;
}

int tl_gates_rewind(tierline_client *client) {
    tl_lock_acquire(&tl_gates.lock);
    int code = look_at_job(client);
    if (code != 0 || tl_gates.arena == TIERLINE_NO_ARENA) {
        code = tl_fail(TIERLINE_E_STATE, "rewinding: no job with an arena is in progress");
    }
    code = code == 0 ? tl_gates_go_to(client, tl_gates.arena, (struct tl_cursor){0}) : code;
    code = code == 0 ? tl_window_shut(client) : code;
    tl_lock_release(&tl_gates.lock);
    return code;
}

/* Work on the GPU may wait for the stream: the monitor answers. */
void tl_gates_revoked(tierline_client *client) {
    (void)client;
    atomic_store(&tl_gates.orphaned, true);
    tl_monitor_wake();
}
