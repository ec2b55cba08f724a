/* The thread that watches over a job on a GPU.
 *
 * While a job runs, the program's threads may all be waiting for the GPU, and the GPU for the
 * stream. So somebody else must hear of a lost agent and connect again, and of a revoked job. A
 * revoked job has no stream any more, but work that waits for it: the monitor then fetches those
 * extents and publishes them itself, in the agent's place, and acknowledges when what waited is
 * done: it reads the ring, which is others' then. If that fails too, the waits are let go, and
 * every later call of this process is answered with an error, so that nobody sees what was computed
 * from wrong bytes.
 *
 * It gives the device away when the agent asks for it (launch_yields.h), which it hears at once.
 *
 * It also ends implicit jobs: after a period without calls, when the GPU is done with what was
 * issued, or as soon as that is so if it is what a program does outside its jobs, and others wait;
 * and it tells the agent what cannot be swapped (holdings.h).
 *
 * Invariant: it never waits for the gates' lock. A thread that holds that may be waiting for the
 * GPU, which may be waiting for the monitor.
 */
#include "lease/launch_monitor.h"

#include "cuda/cuda.h"
#include "cuda/stand_in.h"
#include "jobs/job.h"
#include "lease/holdings.h"
#include "lease/launch_lease.h"
#include "lease/launch_state.h"
#include "lease/launch_yields.h"
#include "link/request.h"
#include "link/state.h"
#include "loading/fetch.h"
#include "wire/threads.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <time.h>

#define PERIOD_NS 5000000U
/* While others may begin to wait for something that is no job. */
#define PERIOD_OUTSIDE_JOBS_NS 500000U
/* After a job: the next one need not wake it then, which would cost it as much as the rest. */
#define STAYS_AWAKE_NS 20000000U
/* What the agent had under way when it gave up may still arrive for so long. */
#define SETTLE_NS 100000000U

static void pause_ns(uint64_t time_ns) {
    nanosleep(&(struct timespec){.tv_nsec = (long)time_ns}, NULL);
}

static uint32_t word(const uint32_t *at) {
    return __atomic_load_n(at, __ATOMIC_ACQUIRE);
}

static bool orphaned(const tierline_client *client, uint64_t job) {
    return atomic_load(&tl_gates.orphaned) && client->job.number == job && client->job.granted &&
           !atomic_load(&tl_gates.stopping);
}

/* Fetches and publishes the next extent for which work on the GPU waits, unless the job is over by
 * then: the ring would be the next one's. 0 or a code. */
static int publish_next(tierline_client *client, uint64_t job, uint32_t index, uint32_t next,
                        uint8_t *buffer) {
    struct tl_arena *arena = &client->arenas[index];
    uint32_t extent = arena->stream_extent[next];
    tl_lock_acquire(&client->lock);
    int code = tl_fetch_bytes(client, index, extent, tl_copy_bytes, buffer);
    tl_lock_release(&client->lock);
    if (code != 0 || !orphaned(client, job)) {
        return code;
    }
    code = tl_stand_in_write(arena, next, buffer, arena->lengths[extent]);
    if (code == 0) {
        tierline_word_publish(&arena->control->published, next + 1);
    }
    return code;
}

/* Returns when nothing that the job issued reads the ring any more, or the job is over. Calls that
 * come now read copies of their own. One that began before the revocation has the gates' lock until
 * it is at the driver: it is there when the lock is free, or the next such call has it. */
static int await_readers(const tierline_client *client, uint64_t job) {
    uint32_t named = atomic_load(&tl_gates.named);
    while (orphaned(client, job) && atomic_load(&tl_gates.named) == named) {
        if (tl_lock_try(&tl_gates.lock)) {
            tl_lock_release(&tl_gates.lock);
            break;
        }
        pause_ns(PERIOD_NS / 10);
    }
    while (orphaned(client, job)) {
        int result = tl_cuda_synchronise();
        if (result != ABI_CAPTURE_UNSUPPORTED) {
            return tl_cuda_check(result, "waiting for what a revoked job issued");
        }
        pause_ns(PERIOD_NS);
    }
    return 0;
}

static void stand_in(tierline_client *client, uint64_t job, uint32_t index) {
    struct tl_arena *arena = &client->arenas[index];
    uint32_t next = word(&arena->control->published);
    for (uint64_t quiet_ns = 0; quiet_ns < SETTLE_NS; quiet_ns += PERIOD_NS) {
        pause_ns(PERIOD_NS);
        uint32_t now = word(&arena->control->published);
        quiet_ns = now == next ? quiet_ns : 0;
        next = now;
    }
    uint8_t *buffer = malloc(arena->extent_bytes);
    int code = buffer != NULL ? 0 : tl_fail(TIERLINE_E_NO_MEMORY, "out of memory");
    if (code == 0 && !tl_cuda_enter(arena->on_device.context)) {
        code = tl_fail(TIERLINE_E_SYSTEM, "the arena's CUDA context is gone");
    } else if (code == 0) {
        tl_yields_heed(client, 0); /* a gate at which it was to stand lets it go */
        while (code == 0 && next < atomic_load(&tl_gates.highest) && orphaned(client, job)) {
            bool room = next < arena->ring_slots || (int32_t)(word(&arena->control->consumed) -
                                                              (next - arena->ring_slots + 1)) >= 0;
            if (!room) {
                pause_ns(PERIOD_NS / 10);
                continue;
            }
            code = publish_next(client, job, index, next, buffer);
            next += code == 0;
        }
        code = code == 0 ? await_readers(client, job) : code;
        tl_cuda_leave();
    }
    free(buffer);
    if (code != 0) {
        tl_monitor_give_up(arena);
    }
    tl_lock_acquire(&client->lock);
    if (client->job.number == job) {
        tl_job_acknowledge(client);
    }
    tl_lock_release(&client->lock);
}

/* What there is to know of the job that runs. */
struct heard {
    uint64_t job; /* 0: none runs */
    uint32_t arena;
    bool revoked;
    bool outside_jobs; /* it is counted as none */
    bool wanted;       /* others wait for it then */
};

/* Listens to the agent. */
static struct heard listen(tierline_client *client) {
    tl_lock_acquire(&client->lock);
    tl_tell(client);
    struct tl_job *job = &client->job;
    uint64_t number = job->granted ? job->number : 0;
    if (number != 0) {
        tl_look(client);
        int code = tl_ensure_connected(client);
        number = job->granted ? job->number : 0;
        if (code == 0) {
            tl_heed_revocation(client);
        } else if (number != 0 && job->arena != TIERLINE_NO_ARENA) {
            struct tl_arena *of = &client->arenas[job->arena];
            if (word(&of->control->published) < atomic_load(&tl_gates.highest)) {
                tl_monitor_give_up(of);
            }
        }
    }
    bool outside = number != 0 && (job->flags & TIERLINE_JOB_WARMUP) != 0;
    struct heard heard = {.job = number,
                          .arena = job->arena,
                          .revoked = number != 0 && job->revoked && !job->acknowledged,
                          .outside_jobs = outside,
                          .wanted = outside && tl_cached_lease_wanted(&client->lease)};
    tl_lock_release(&client->lock);
    return heard;
}

/* Ends an implicit job if no call has come since `begun`, and none is under way on the GPU. */
static void end_if_idle(tierline_client *client, uint32_t begun) {
    if (!tl_lock_try(&tl_gates.lock)) {
        return; /* somebody calls */
    }
    if (atomic_load(&tl_gates.begun) == begun) {
        tl_gates_end_if_idle(client);
    }
    tl_lock_release(&tl_gates.lock);
}

static void *watch(void *context) {
    tierline_client *client = context;
    uint32_t begun = 0;
    uint64_t called_ns = 0; /* when it saw the last call */
    uint64_t awake_ns = 0;  /* until then it looks at short intervals, whether a job runs or not */
    prctl(PR_SET_TIMERSLACK, 1UL); /* it is waited for when it sleeps for microseconds */
    for (;;) {
        /* Before everything it looks at: a thread that changes any of that wakes this one later,
         * or its change was seen. */
        uint32_t seen = __atomic_load_n(&tl_gates.wake, __ATOMIC_ACQUIRE);
        if (atomic_load(&tl_gates.stopping)) {
            return NULL;
        }
        struct heard heard = listen(client);
        uint64_t job = heard.job;
        if (heard.revoked && heard.arena != TIERLINE_NO_ARENA) {
            stand_in(client, job, heard.arena);
        }
        bool stopping = tl_yields_heed(client, PERIOD_NS);
        uint32_t now = atomic_load(&tl_gates.begun);
        uint64_t now_ns = tl_now_ns();
        called_ns = now == begun ? called_ns : now_ns;
        begun = now;
        if (job != 0 && (now_ns - called_ns >= PERIOD_NS || heard.wanted)) {
            end_if_idle(client, now);
        }
        uint64_t idle = tl_holdings_report(client);
        now_ns = tl_now_ns();
        awake_ns = job != 0 ? now_ns + STAYS_AWAKE_NS : awake_ns;
        bool dozes = job == 0 && now_ns >= awake_ns;
        if (!stopping && (job == 0 || !tl_yields_listen(client, PERIOD_NS))) {
            atomic_store(&tl_gates.dozing, dozes);
            uint64_t period = heard.outside_jobs ? PERIOD_OUTSIDE_JOBS_NS : PERIOD_NS;
            tl_futex_wait(&tl_gates.wake, seen, dozes || idle < period ? idle : period, false);
            atomic_store(&tl_gates.dozing, false);
        }
    }
}

int tl_monitor_start(void) {
    if (tl_gates.watching) {
        return 0;
    }
    atomic_store(&tl_gates.stopping, false);
    int code = tl_thread_start(&tl_gates.monitor, watch, tl_gates.client, "watches jobs");
    tl_gates.watching = code == 0;
    return code;
}

void tl_monitor_stop(void) {
    if (tl_gates.watching) {
        atomic_store(&tl_gates.stopping, true);
        tl_monitor_wake();
        pthread_join(tl_gates.monitor, NULL);
        tl_gates.watching = false;
    }
}
