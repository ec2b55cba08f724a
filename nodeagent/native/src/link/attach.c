/* Opening a connection, and offering sealed arenas and the workspace back to an agent that was
 * restarted.
 *
 * It runs without the lock, as the only user of the connection (link == TL_LINK_ATTACHING), and
 * changes nothing that another thread reads before it succeeded, except the content of staging
 * memory: a private copy is therefore made under the lock, and a store that crossed a reconnect
 * fails with TIERLINE_E_RETRY.
 *
 * Invariant: after success the agent knows every sealed arena of this client and the job that is in
 * progress; after failure the connection is closed and nothing else has changed.
 */
#include "link/attach.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define HANDSHAKE_PATIENCE_NS 30000000000ULL
#define POLL_SLICE_MS 1000
#define UNASKED 0U
#define PLACEMENT_BYTES 4U /* of one extent, on the wire */

static int unreachable(tierline_client *client, const char *what) {
    char reason[sizeof client->connection.reason];
    snprintf(reason, sizeof reason, "%.60s: %.180s", what, client->connection.reason);
    memcpy(client->connection.reason, reason, sizeof reason);
    tl_connection_close(&client->connection);
    return tl_fail(TIERLINE_E_CONNECTION, "the agent at %s cannot be reached: %.200s",
                   client->socket_path, client->connection.reason);
}

/* Waits for a message of the expected type that answers `sequence` (or nothing, if UNASKED); it
 * stays in the buffer until it is dropped. */
static int expect(tierline_client *client, uint16_t type, uint32_t sequence,
                  struct tlp_header *header, struct tlp_message *message) {
    struct tl_connection *connection = &client->connection;
    uint64_t end_ns = tl_now_ns() + HANDSHAKE_PATIENCE_NS;
    for (;;) {
        int state = tl_connection_next(connection, header, message);
        if (state < 0) {
            return unreachable(client, "opening the connection");
        }
        client->offer.answered = client->offer.answered || state > 0;
        if (state > 0 && message->type == TLP_ERROR) {
            int code = -(int)message->error.code;
            memcpy(connection->reason, message->error.reason, sizeof message->error.reason);
            tl_connection_close(connection);
            return tl_fail(code, "the agent at %s refused: %.200s", client->socket_path,
                           connection->reason);
        }
        if (state > 0 && message->type == TLP_REVOKE) {
            /* The agent could not go on with the job in progress. */
            client->offer.revoked_job = message->revoke.job;
            tl_connection_drop_frame(connection, header);
            continue;
        }
        if (state > 0 && message->type == type &&
            (sequence == UNASKED || header->sequence == sequence)) {
            return 0;
        }
        if (state > 0) {
            snprintf(connection->reason, sizeof connection->reason, "it sent message %u for %u",
                     message->type, type);
            return unreachable(client, "opening the connection");
        }
        if (tl_now_ns() >= end_ns || atomic_load(&client->keeper.stopping)) {
            snprintf(connection->reason, sizeof connection->reason, "it does not answer");
            return unreachable(client, "opening the connection");
        }
        int ready = tl_connection_poll(connection, POLL_SLICE_MS);
        if (ready < 0 || (ready > 0 && tl_connection_receive(connection) < 0)) {
            return unreachable(client, "opening the connection");
        }
    }
}

static int send_message(tierline_client *client, const struct tlp_message *message,
                        const int *descriptors, size_t count) {
    size_t length =
        tlp_encode(message, ++client->next_sequence, client->frame, sizeof client->frame);
    if (length == 0) {
        snprintf(client->connection.reason, sizeof client->connection.reason,
                 "message %u does not fit a frame", message->type);
        return unreachable(client, "attaching");
    }
    if (tl_connection_send(&client->connection, client->frame, length, descriptors, count) != 0) {
        return unreachable(client, "attaching");
    }
    return 0;
}

/* Terms may change between connections (a new plan), but not the sizes that mappings depend on. */
static int accept_welcome(tierline_client *client, const struct tlp_welcome *welcome) {
    bool first = client->staging == NULL;
    if (!first && (welcome->extent_bytes != client->terms.extent_bytes ||
                   welcome->staging_slots < client->staging_slots)) {
        snprintf(client->connection.reason, sizeof client->connection.reason,
                 "it came back with extents of %llu bytes and %u staging slots; restart the task",
                 (unsigned long long)welcome->extent_bytes, welcome->staging_slots);
        return unreachable(client, "opening the connection");
    }
    client->reattach_token = welcome->reattach_token;
    if (first) {
        client->staging_slots = welcome->staging_slots;
        client->terms.extent_bytes = welcome->extent_bytes;
        client->terms.period_ns = welcome->period_ns;
        client->terms.deadline_ns = welcome->deadline_ns;
        client->terms.flags = welcome->flags;
        client->terms.max_arenas = welcome->max_arenas;
        memcpy(client->terms.task_name, welcome->task_name, sizeof client->terms.task_name);
        memcpy(client->terms.device_uuid, welcome->device_uuid, sizeof client->terms.device_uuid);
    }
    return 0;
}

/* Maps the staging memory, over the old one if there was one: addresses in use stay valid. */
static int accept_staging(tierline_client *client, const struct tlp_fds *fds) {
    struct tl_descriptor descriptor;
    uint64_t size = (uint64_t)client->staging_slots * client->terms.extent_bytes;
    struct stat found;
    if (fds->kind != TLP_DESCRIPTOR_KIND_STAGING || fds->count != 1 ||
        tl_connection_claim(&client->connection, 1, &descriptor) != 0) {
        snprintf(client->connection.reason, sizeof client->connection.reason,
                 "it did not send its staging memory");
        return unreachable(client, "opening the connection");
    }
    void *mapped = MAP_FAILED;
    if (tl_descriptor_is_ours(&descriptor) && fstat(descriptor.number, &found) == 0 &&
        (uint64_t)found.st_size >= size) {
        int fixed = client->staging != NULL ? MAP_FIXED : 0;
        mapped = mmap(client->staging, size, PROT_READ | PROT_WRITE, MAP_SHARED | fixed,
                      descriptor.number, 0);
    }
    tl_descriptor_close(&descriptor); /* the mapping keeps it */
    if (mapped == MAP_FAILED) {
        snprintf(client->connection.reason, sizeof client->connection.reason,
                 "its staging memory cannot be mapped or is smaller than %llu bytes",
                 (unsigned long long)size);
        return unreachable(client, "opening the connection");
    }
    client->staging = mapped;
    return 0;
}

/* The file of the cached lease, if the agent has one for this client. */
static int accept_lease(tierline_client *client, const struct tlp_fds *fds) {
    if (fds->kind != TLP_DESCRIPTOR_KIND_LEASE || fds->count != 1 ||
        tl_connection_claim(&client->connection, 1, &client->offer.lease) != 0) {
        snprintf(client->connection.reason, sizeof client->connection.reason,
                 "it did not send its cached lease");
        return unreachable(client, "opening the connection");
    }
    return 0;
}

/* Which job has the lease and nothing that is offered back. */
static int say_held(tierline_client *client) {
    const struct tl_offer *offer = &client->offer;
    struct tlp_message message = {.type = TLP_JOB_HELD};
    if (offer->running_job != 0 && offer->job_arena == TIERLINE_NO_ARENA &&
        !client->workspace.lent) {
        message.job_held.job = offer->running_job;
        message.job_held.release_ns = offer->release_ns;
        message.job_held.deadline_ns = offer->deadline_ns;
    }
    return send_message(client, &message, NULL, 0);
}

static int greet(tierline_client *client) {
    struct tlp_header header;
    struct tlp_message message = {.type = TLP_HELLO};
    message.hello.minor = TLP_MINOR;
    message.hello.device = client->device;
    message.hello.reattach_token = client->reattach_token;
    memcpy(message.hello.process_name, client->process_name, sizeof client->process_name);
    int code = send_message(client, &message, NULL, 0);
    uint32_t sequence = client->next_sequence;
    code = code == 0 ? expect(client, TLP_WELCOME, sequence, &header, &message) : code;
    code = code == 0 ? accept_welcome(client, &message.welcome) : code;
    if (code != 0) {
        return code;
    }
    bool leased = (message.welcome.flags & TLP_WELCOME_FLAGS_CACHED_LEASE) != 0;
    client->offer.warmups_take = (message.welcome.flags & TLP_WELCOME_FLAGS_WARMUPS_TAKE) != 0;
    bool says_held = (message.welcome.flags & TLP_WELCOME_FLAGS_SAYS_HELD) != 0;
    tl_connection_drop_frame(&client->connection, &header);
    code = expect(client, TLP_FDS, UNASKED, &header, &message);
    code = code == 0 ? accept_staging(client, &message.fds) : code;
    if (code == 0) {
        tl_connection_drop_frame(&client->connection, &header);
        code = leased ? expect(client, TLP_FDS, UNASKED, &header, &message) : 0;
    }
    if (code == 0 && leased) {
        code = accept_lease(client, &message.fds);
        if (code == 0) {
            tl_connection_drop_frame(&client->connection, &header);
        }
    }
    return code == 0 && says_held ? say_held(client) : code;
}

static int send_digests(tierline_client *client, uint32_t index) {
    const struct tl_arena *arena = &client->arenas[index];
    int code = 0;
    for (uint32_t first = 0; first < arena->extent_count && code == 0;) {
        uint32_t left = arena->extent_count - first;
        uint32_t count = left < TLP_MAX_DIGESTS_ITEMS ? left : TLP_MAX_DIGESTS_ITEMS;
        struct tlp_message message = {.type = TLP_DIGESTS};
        message.digests.arena = index;
        message.digests.first = first;
        message.digests.count = count;
        message.digests.digests = arena->digests + (size_t)first * TL_DIGEST_BYTES;
        code = send_message(client, &message, NULL, 0);
        first += count;
    }
    return code;
}

/* What the program has closed can be offered to no agent. */
static int not_ours(tierline_client *client) {
    snprintf(client->connection.reason, sizeof client->connection.reason,
             TL_CLOSED_BY_PROGRAM ": its weights are lost with them; let it close descriptors "
                                  "before its first job, or leave those open that it has not "
                                  "opened");
    client->offer.refused = true;
    return unreachable(client, "attaching");
}

static int send_descriptors(tierline_client *client, uint32_t index, uint32_t kind,
                            const struct tl_descriptor *descriptors, uint32_t total) {
    int numbers[TLP_MAX_DESCRIPTORS];
    int code = 0;
    for (uint32_t first = 0; first < total && code == 0;) {
        uint32_t left = total - first;
        uint32_t count = left < TLP_MAX_DESCRIPTORS ? left : TLP_MAX_DESCRIPTORS;
        struct tlp_message message = {.type = TLP_FDS};
        message.fds.arena = index;
        message.fds.kind = kind;
        message.fds.first = first;
        message.fds.count = count;
        for (uint32_t i = 0; i < count && code == 0; i++) {
            numbers[i] = descriptors[first + i].number;
            code = tl_descriptor_is_ours(&descriptors[first + i]) ? 0 : not_ours(client);
        }
        code = code == 0 ? send_message(client, &message, numbers, count) : code;
        first += count;
    }
    return code;
}

static int offer_arena(tierline_client *client, uint32_t index) {
    struct tl_arena *arena = &client->arenas[index];
    arena->memory->recover(arena);
    uint8_t *placement = malloc((size_t)arena->extent_count * PLACEMENT_BYTES);
    if (placement == NULL) {
        snprintf(client->connection.reason, sizeof client->connection.reason, "out of memory");
        return unreachable(client, "attaching");
    }
    for (uint32_t e = 0; e < arena->extent_count; e++) {
        tlp_put_u32(placement, e, arena->placement[e]);
    }
    struct tlp_message message = {.type = TLP_ATTACH};
    struct tlp_attach *attach = &message.attach;
    attach->arena = index;
    attach->extent_count = arena->extent_count;
    attach->layer_count = arena->layer_count;
    attach->ring_slots = arena->ring_slots;
    attach->weight_bytes = arena->weight_bytes;
    attach->pinned_bytes = arena->pinned_bytes;
    if (client->offer.running_job != 0 && client->offer.job_arena == index) {
        attach->running_job = client->offer.running_job;
        attach->release_ns = client->offer.release_ns;
        attach->deadline_ns = client->offer.deadline_ns;
    }
    attach->placement = placement;
    int code = send_digests(client, index);
    code = code == 0 ? send_message(client, &message, NULL, 0) : code;
    uint32_t sequence = client->next_sequence;
    free(placement);
    code = code == 0 ? send_descriptors(client, index, TLP_DESCRIPTOR_KIND_RESIDENT,
                                        arena->resident, arena->resident_count)
                     : code;
    code = code == 0 ? send_descriptors(client, index, TLP_DESCRIPTOR_KIND_RING, arena->ring,
                                        arena->ring_slots)
                     : code;
    code = code == 0 ? send_descriptors(client, index, TLP_DESCRIPTOR_KIND_CONTROL,
                                        &arena->control_descriptor, 1)
                     : code;
    struct tlp_header header;
    code = code == 0 ? expect(client, TLP_ATTACHED, sequence, &header, &message) : code;
    if (code == 0 && message.attached.arena != index) {
        snprintf(client->connection.reason, sizeof client->connection.reason,
                 "it took arena %u back for arena %u", message.attached.arena, index);
        code = unreachable(client, "attaching");
    }
    if (code == 0) {
        tl_connection_drop_frame(&client->connection, &header);
    }
    return code;
}

static int offer_workspace(tierline_client *client) {
    const struct tl_workspace *workspace = &client->workspace;
    const struct tl_offer *offer = &client->offer;
    struct tlp_message message = {.type = TLP_WORKSPACE_RETURN};
    message.workspace_return.workspace_bytes = workspace->asked_bytes;
    message.workspace_return.reach_bytes = offer->reach_bytes;
    message.workspace_return.extent_count = workspace->extent_count;
    message.workspace_return.flags = workspace->flags;
    if (offer->running_job != 0) {
        message.workspace_return.running_job = offer->running_job;
        message.workspace_return.release_ns = offer->release_ns;
        message.workspace_return.deadline_ns = offer->deadline_ns;
    }
    int code = send_message(client, &message, NULL, 0);
    uint32_t sequence = client->next_sequence;
    code = code == 0 ? send_descriptors(client, 0, TLP_DESCRIPTOR_KIND_WORKSPACE,
                                        workspace->descriptors, workspace->extent_count)
                     : code;
    code = code == 0 ? send_descriptors(client, 0, TLP_DESCRIPTOR_KIND_BACKUP,
                                        workspace->descriptors + workspace->extent_count,
                                        workspace->received - workspace->extent_count)
                     : code;
    struct tlp_header header;
    code = code == 0 ? expect(client, TLP_WORKSPACE_TAKEN, sequence, &header, &message) : code;
    if (code == 0) {
        tl_connection_drop_frame(&client->connection, &header);
    }
    return code;
}

int tl_attach(tierline_client *client) {
    tl_connection_close(&client->connection);
    client->offer.answered = false;
    if (tl_connection_open(&client->connection, client->socket_path) != 0) {
        snprintf(client->connection.reason, sizeof client->connection.reason, "%s",
                 strerror(errno));
        return unreachable(client, "connecting");
    }
    int code = greet(client);
    bool welcome = code == 0;
    for (uint32_t i = 0; i < TIERLINE_MAX_ARENAS && code == 0; i++) {
        if ((client->offer.sealed_arenas & (1U << i)) != 0) {
            code = offer_arena(client, i);
        }
    }
    if (code == 0 && client->workspace.lent) { /* what it is changes only while the link is up */
        code = offer_workspace(client);
    }
    client->offer.refused = client->offer.refused || (welcome && code == TIERLINE_E_NOT_ADMITTED);
    if (code != 0) {
        tl_connection_close(&client->connection);
        tl_descriptor_close(&client->offer.lease);
    }
    return code;
}
