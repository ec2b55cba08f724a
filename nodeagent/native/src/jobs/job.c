/* Jobs: the lease, and the state of the arena around it.
 *
 * The slot for the job is a flag under the client's lock, not a mutex: the thread that ends a job
 * need not be the one that began it.
 *
 * Invariant: outside a granted job every streamed extent is closed or private, so nobody reads a
 * ring that the agent fills for somebody else.
 */
#include "jobs/job.h"

#include "link/request.h"
#include "loading/faults.h"

int tl_job_close_ring(tierline_client *client) {
    if (client->job.arena == TIERLINE_NO_ARENA || client->device == TIERLINE_DEVICE_CUDA) {
        return 0;
    }
    struct tl_arena *arena = &client->arenas[client->job.arena];
    return tl_arena_close(arena, 0, arena->streamed_count);
}

void tl_job_acknowledge(tierline_client *client) {
    struct tl_job *job = &client->job;
    if (job->granted && job->revoked && !job->acknowledged) {
        job->acknowledged = true;
        struct tlp_message message = {.type = TLP_ACK};
        message.ack.job = job->number;
        tl_send_one_way(client, &message);
    }
}

int tl_heed_revocation(tierline_client *client) {
    struct tl_job *job = &client->job;
    if (!job->granted) {
        return 0;
    }
    if (!job->revoked && job->revoke_asked == job->number && client->link == TL_LINK_UP) {
        int code = tl_job_close_ring(client);
        if (code != 0) {
            return code;
        }
        job->revoked = true;
        client->backend->revoked(client);
    }
    if (job->revoked) {
        return tl_fail(TIERLINE_E_REVOKED,
                       "job %llu lost its lease; end it, and begin another for the rest",
                       (unsigned long long)job->number);
    }
    return 0;
}

static int reset_arenas(tierline_client *client) {
    int code = 0;
    if (client->device == TIERLINE_DEVICE_CUDA) {
        return 0; /* they are when it is granted */
    }
    for (size_t i = 0; i < TIERLINE_MAX_ARENAS && code == 0; i++) {
        if (client->arenas[i].state == TL_ARENA_SEALED) {
            code = tl_arena_reset(&client->arenas[i]);
        }
    }
    return code;
}

static int check_job_arena(const tierline_client *client, uint32_t index) {
    if (index == TIERLINE_NO_ARENA) {
        return 0;
    }
    if (index >= TIERLINE_MAX_ARENAS || client->arenas[index].state != TL_ARENA_SEALED) {
        return tl_fail(TIERLINE_E_STATE, "beginning a job on arena %u: it is not sealed", index);
    }
    return 0;
}

/* Begins the job by the cached lease, if there is one for it. The agent may be gone, which the
 * keeper hears of: then the next agent finds which client has taken it. The agent need not know at
 * once: with the lock the lease is not anybody else's. To wake it here, and again at the end, would
 * be a good part of what a short job costs. */
static bool take_cached_lease(tierline_client *client) {
    struct tl_job *job = &client->job;
    bool is_warmup = (job->flags & TIERLINE_JOB_WARMUP) != 0;
    if (!tl_link_is_ours(client) || (is_warmup && !client->warmups_take) ||
        !tl_cached_lease_take(&client->lease, job->number, job->arena,
                              is_warmup && job->arena == TIERLINE_NO_ARENA)) {
        return false;
    }
    job->taken = true;
    struct tlp_message message = {.type = TLP_JOB_TAKEN};
    message.job_taken.job = job->number;
    message.job_taken.arena = job->arena;
    message.job_taken.flags = job->flags;
    message.job_taken.release_ns = job->release_ns;
    message.job_taken.deadline_ns = job->deadline_ns;
    message.job_taken.taken_ns = tl_now_ns();
    tl_tell_later(client, &message);
    return true;
}

/* Gives the cached lease back. That the job is over is told when the agent waits for it, else with
 * what is sent next, or by the monitor. */
static void return_cached_lease(tierline_client *client, const struct tlp_job_end *end) {
    struct tlp_message message = {.type = TLP_JOB_RETURNED};
    message.job_returned.job = end->job;
    message.job_returned.end_ns = end->end_ns;
    message.job_returned.workspace_peak_bytes = end->workspace_peak_bytes;
    message.job_returned.stall_ns = end->stall_ns;
    message.job_returned.fetched_bytes = end->fetched_bytes;
    tl_tell_later(client, &message);
    client->job.taken = false;
    if (tl_cached_lease_give_back(&client->lease)) {
        tl_tell(client);
    }
}

static void give_slot_back(tierline_client *client) {
    client->job.active = false;
    client->job.granted = false;
    tl_event_announce(&client->changed);
}

int tl_job_begin(tierline_client *client, const struct tlp_job_begin *asked, bool patient) {
    struct tl_job *job = &client->job;
    int code = tl_ensure_connected(client);
    while (code == 0 && job->active) {
        if (!patient) {
            return TL_BUSY;
        }
        tl_event_wait(&client->changed, &client->lock, TL_FOREVER);
        code = tl_ensure_connected(client);
    }
    code = code == 0 ? check_job_arena(client, asked->arena) : code;
    if (code != 0) {
        return code;
    }
    *job = (struct tl_job){.active = true,
                           .number = job->number + 1,
                           .arena = asked->arena,
                           .flags = asked->flags,
                           .release_ns = asked->release_ns,
                           .deadline_ns = asked->deadline_ns};
    uint64_t number = job->number;
    code = reset_arenas(client);
    if (code == 0 && take_cached_lease(client)) {
        job->granted = true;
        return 0;
    }
    struct tlp_message message = {.type = TLP_JOB_BEGIN, .job_begin = *asked};
    message.job_begin.job = number;
    struct tlp_message reply;
    code = code == 0 ? tl_request(client, &message, TLP_GRANT, &reply, TL_REPEAT_AFTER_RECONNECT)
                     : code;
    if (code == 0 && reply.grant.job != number) {
        code = tl_fail(TIERLINE_E_MALFORMED, "beginning job %llu: the agent granted job %llu",
                       (unsigned long long)number, (unsigned long long)reply.grant.job);
    }
    if (code != 0) {
        give_slot_back(client);
        return code;
    }
    job->granted = true;
    return 0;
}

int tierline_job_begin(tierline_client *client, uint32_t arena, uint32_t flags, uint64_t release_ns,
                       uint64_t deadline_ns, uint64_t *job) {
    int code = tl_check_usable(client);
    code = code == 0 && client->device == TIERLINE_DEVICE_CPU ? tl_faults_install() : code;
    if (code != 0) {
        return code;
    }
    if (job == NULL || (flags & ~TIERLINE_JOB_WARMUP) != 0) {
        return tl_fail(TIERLINE_E_ARGUMENT, "beginning a job with flags %#x", flags);
    }
    struct tlp_job_begin asked = {
        .arena = arena, .flags = flags, .release_ns = release_ns, .deadline_ns = deadline_ns};
    return client->backend->job_begin(client, &asked, job);
}

static int await_end(tierline_client *client, const struct tlp_message *message) {
    uint64_t number = message->job_end.job;
    struct tlp_message reply;
    int code = tl_request(client, message, TLP_ENDED, &reply, TL_REPEAT_AFTER_RECONNECT);
    if (code == 0 && reply.ended.job != number) {
        code = tl_fail(TIERLINE_E_MALFORMED, "ending job %llu: the agent ended job %llu",
                       (unsigned long long)number, (unsigned long long)reply.ended.job);
    }
    return code;
}

void tl_job_await_return(tierline_client *client) {
    while (client->job.yielding) {
        tl_event_wait(&client->changed, &client->lock, TL_FOREVER);
    }
}

int tl_job_end(tierline_client *client, uint64_t number, uint64_t workspace_peak_bytes) {
    struct tl_job *job = &client->job;
    tl_job_await_return(client);
    if (!job->granted || job->ending || job->number != number) {
        return tl_fail(TIERLINE_E_STATE, "ending job %llu: it is not in progress",
                       (unsigned long long)number);
    }
    if (!job->taken) { /* one that streams nothing is not revoked */
        tl_look(client);
    }
    int code = tl_heed_revocation(client);
    tl_job_acknowledge(client);
    job->ending = true;
    code = code == 0 ? tl_job_close_ring(client) : code;
    if (code == 0) {
        struct tlp_message message = {.type = TLP_JOB_END};
        message.job_end.job = number;
        message.job_end.end_ns = tl_now_ns();
        message.job_end.workspace_peak_bytes = client->backend->reach(client, workspace_peak_bytes);
        message.job_end.stall_ns = job->stats.stall_ns;
        message.job_end.fetched_bytes = job->stats.fetched_bytes;
        /* On a GPU all work is done by now, so that nothing can go wrong with the job any more.
         * The round trip would be a good part of what a short job costs. */
        if (job->taken && tl_link_is_ours(client)) {
            return_cached_lease(client, &message.job_end);
        } else {
            code = client->device == TIERLINE_DEVICE_CUDA ? tl_send_unawaited(client, &message)
                                                          : await_end(client, &message);
        }
    }
    give_slot_back(client);
    return code;
}

int tierline_job_end(tierline_client *client, uint64_t job, uint64_t workspace_peak_bytes) {
    int code = tl_check_usable(client);
    if (code == 0 && job == 0) { /* asked at the end of each job, in case it was interrupted */
        code = tl_fail(TIERLINE_E_STATE, "ending a job: none is in progress");
    }
    return code == 0 ? client->backend->job_end(client, job, workspace_peak_bytes) : code;
}

int tl_job_rewind(tierline_client *client, uint32_t arena, uint32_t position, uint32_t consumed) {
    struct tl_job *job = &client->job;
    int code = tl_heed_revocation(client);
    if (code == 0 && (!job->granted || job->ending || arena == TIERLINE_NO_ARENA)) {
        code = tl_fail(TIERLINE_E_STATE, "rewinding: no job with an arena is in progress");
    }
    if (code == 0 && job->taken && arena != job->arena) {
        code = tl_fail(TIERLINE_E_STATE, "rewinding: a job that took the lease streams nothing");
    }
    if (code != 0) {
        return code;
    }
    struct tlp_message message = {.type = TLP_REWIND};
    message.rewind.job = job->number;
    message.rewind.arena = arena;
    message.rewind.position = position;
    message.rewind.consumed = consumed;
    struct tlp_message reply;
    code = tl_request(client, &message, TLP_REWOUND, &reply, TL_REPEAT_AFTER_RECONNECT);
    if (code == 0 && reply.rewound.job != message.rewind.job) {
        code =
            tl_fail(TIERLINE_E_MALFORMED, "rewinding job %llu: the agent rewound job %llu",
                    (unsigned long long)message.rewind.job, (unsigned long long)reply.rewound.job);
    }
    job->arena = code == 0 ? arena : job->arena;
    return code;
}

int tierline_rewind(tierline_client *client) {
    int code = tl_check_usable(client);
    return code == 0 ? client->backend->rewind(client) : code;
}

uint32_t tierline_wanted(tierline_client *client) {
    if (tl_check_usable(client) != 0) {
        return 0;
    }
    tl_lock_acquire(&client->lock); /* the file is exchanged when the connection is */
    bool wanted = client->job.granted && tl_cached_lease_is_ours(&client->lease) &&
                  tl_cached_lease_wanted(&client->lease);
    tl_lock_release(&client->lock);
    return wanted ? 1 : 0;
}

int tierline_get_job_stats(tierline_client *client, tierline_job_stats *out) {
    int code = tl_check_usable(client);
    if (code == 0) {
        tl_lock_acquire(&client->lock);
        *out = client->job.stats;
        tl_lock_release(&client->lock);
    }
    return code;
}
