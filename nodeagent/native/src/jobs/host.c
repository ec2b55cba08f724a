/* See host.h. Its gates are at layers (layer_gates.c), and nobody else has to hear of it. */
#include "jobs/host.h"

#include "arena/host_memory.h"
#include "jobs/job.h"

static int agree(tierline_client *client) {
    (void)client;
    return 0;
}

static void disown(tierline_client *client) {
    (void)client;
}

static void nothing(void) {
}

static int stored(tierline_client *client, uint32_t index, uint32_t extent) {
    (void)client;
    (void)index;
    (void)extent;
    return 0;
}

static int job_begin(tierline_client *client, const struct tlp_job_begin *asked, uint64_t *job) {
    tl_lock_acquire(&client->lock);
    int code = tl_job_begin(client, asked, true);
    *job = client->job.number;
    tl_lock_release(&client->lock);
    return code;
}

static int job_end(tierline_client *client, uint64_t job, uint64_t workspace_peak_bytes) {
    tl_lock_acquire(&client->lock);
    int code = tl_job_end(client, job, workspace_peak_bytes);
    tl_lock_release(&client->lock);
    return code;
}

static int rewind_job(tierline_client *client) {
    tl_lock_acquire(&client->lock);
    tl_job_await_return(client);
    uint32_t index = client->job.arena;
    int code = tl_job_close_ring(client);
    code = code == 0 ? tl_job_rewind(client, index, 0, 0) : code;
    if (code == 0) {
        struct tl_arena *arena = &client->arenas[index];
        arena->cursor = 0;
        arena->opened = 0;
        arena->consumed = 0;
    }
    tl_lock_release(&client->lock);
    return code;
}

static uint64_t reach(tierline_client *client, uint64_t told) {
    (void)client;
    return told;
}

const struct tl_backend tl_host_backend = {.memory = &tl_host_memory,
                                           .adopt = agree,
                                           .disown = disown,
                                           .forget = nothing,
                                           .connected = nothing,
                                           .settle = agree,
                                           .show = agree,
                                           .stored = stored,
                                           .job_begin = job_begin,
                                           .job_end = job_end,
                                           .rewind = rewind_job,
                                           .revoked = tl_job_acknowledge,
                                           .reach = reach};
