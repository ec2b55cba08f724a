/* Giving the device away at a gate, and going on later.
 *
 * The agent asks by the top bit of the word `published`, at which gates look and wait anyway: a job
 * that is not asked pays one load at a gate, and one that waits for data is woken. The job closes
 * its ring, says in YIELD how much of its stream it has done with, and stands in that request until
 * RESUMED; a failure of the agent meanwhile is a request's usual business. What the job has
 * computed so far stays where it is, in the process's own memory.
 *
 * It decides nothing: whether to ask, and what becomes of the ring, is the agent's business. On a
 * GPU gates are at launches, and it is the GPU that stands there (launch_yields.h). A job without
 * an arena has no gate.
 *
 * Invariant: while a job yields no streamed extent is open, none is opened, and nothing is given
 * back; so what the agent puts into the flag words meanwhile is what its next gate finds.
 */
#include "jobs/yields.h"

#include "jobs/job.h"
#include "link/request.h"

static bool asked_to_yield(const tierline_client *client) {
    const struct tl_job *job = &client->job;
    if (!job->granted || job->revoked || job->ending || job->arena == TIERLINE_NO_ARENA ||
        client->device != TIERLINE_DEVICE_CPU) {
        return false;
    }
    const struct tl_control *control = client->arenas[job->arena].control;
    return (__atomic_load_n(&control->published, __ATOMIC_ACQUIRE) & TLP_YIELD_BIT) != 0;
}

/* Only the words count from here on: of what was open, the next gate opens what it needs. */
static int close_ring(struct tl_arena *arena) {
    int code = tl_arena_close(arena, 0, arena->streamed_count);
    if (code == 0) {
        arena->opened = arena->consumed;
    }
    return code;
}

int tl_job_yield(tierline_client *client, uint32_t position) {
    const struct tl_job *job = &client->job;
    struct tlp_message message = {.type = TLP_YIELD};
    message.yield.job = job->number;
    message.yield.arena = job->arena;
    message.yield.position = position;
    message.yield.release_ns = job->release_ns;
    message.yield.deadline_ns = job->deadline_ns;
    message.yield.flags = job->flags;
    struct tlp_message reply;
    int code = tl_request(client, &message, TLP_RESUMED, &reply, TL_REPEAT_AFTER_RECONNECT);
    if (code == 0 && reply.resumed.job != job->number) {
        code = tl_fail(TIERLINE_E_MALFORMED, "yielding in job %llu: the agent resumed job %llu",
                       (unsigned long long)job->number, (unsigned long long)reply.resumed.job);
    }
    return code;
}

int tl_job_heed_yield(tierline_client *client) {
    struct tl_job *job = &client->job;
    tl_job_await_return(client);
    if (!asked_to_yield(client)) {
        return 0;
    }
    job->yielding = true;
    int code = close_ring(&client->arenas[job->arena]);
    code = code == 0 ? tl_job_yield(client, client->arenas[job->arena].consumed) : code;
    job->yielding = false;
    tl_event_announce(&client->changed);
    if (code == TIERLINE_E_REVOKED && tl_heed_revocation(client) == 0) {
        job->revoked = true; /* by an agent that never granted it, so there is nothing to answer */
    }
    return code;
}
