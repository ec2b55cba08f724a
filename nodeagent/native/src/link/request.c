/* Requests and replies over the connection, for several threads at once.
 *
 * There is no reader thread: of the threads that wait for a reply, one polls the socket and hands
 * out what comes, also to the others; when its own reply has come the next one takes over. So a
 * round trip costs no extra wake-up, and a faulting thread can fetch while another waits for a
 * grant.
 *
 * Invariant: a pending request is linked exactly while its requester is in tl_request; breaking
 * the link marks all of them lost, and each requester repeats its own or gives up.
 */
#include "link/request.h"

#include "link/attach.h"

#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define WAIT_SLICE_MS 1000
#define SLICE_NS ((uint64_t)WAIT_SLICE_MS * 1000000U)
#define FIRST_PAUSE_MS 10
#define LONGEST_PAUSE_MS 50
/* Of an agent that answers, and will not have this client now. */
#define LONGEST_ANSWERED_PAUSE_MS 1000
#define MOST_LOSSES 3

void tl_break_link(tierline_client *client) {
    if (client->link != TL_LINK_UP) {
        return;
    }
    /* Shut down, not closed: another thread may be polling this descriptor. */
    tl_connection_shut_down(&client->connection);
    client->link = TL_LINK_DOWN;
    memcpy(client->reason, client->connection.reason, sizeof client->reason);
    for (struct tl_pending *p = client->pending; p != NULL; p = p->next) {
        if (p->progress == TL_WAITING) {
            p->progress = TL_LOST;
        }
    }
    tl_event_announce(&client->changed);
}

bool tl_link_is_ours(tierline_client *client) {
    bool ours = client->link == TL_LINK_UP && tl_connection_is_ours(&client->connection);
    if (ours && !tl_cached_lease_is_ours(&client->lease)) {
        snprintf(client->connection.reason, sizeof client->connection.reason, "%s",
                 TL_CLOSED_BY_PROGRAM);
        ours = false;
    }
    if (!ours) {
        tl_break_link(client);
    }
    return ours;
}

static int complete(tierline_client *client, const struct tlp_header *header,
                    const struct tlp_message *message) {
    struct tl_pending *p = client->pending;
    while (p != NULL && (p->sequence != header->sequence || p->progress != TL_WAITING)) {
        p = p->next;
    }
    bool unawaited = header->sequence != 0 && header->sequence == client->unawaited;
    if (p == NULL && unawaited && (message->type == TLP_ENDED || message->type == TLP_ERROR)) {
        return 0;
    }
    if (p == NULL) {
        const char *what =
            message->type == TLP_ERROR ? message->error.reason : "it answered what nobody asked";
        snprintf(client->connection.reason, sizeof client->connection.reason,
                 "the agent gave the connection up: %.200s", what);
        return -1;
    }
    if (message->type != p->expected && message->type != TLP_ERROR) {
        snprintf(client->connection.reason, sizeof client->connection.reason,
                 "the agent answered a request with message %u instead of %u", message->type,
                 p->expected);
        return -1;
    }
    if (message->type == TLP_RESERVED &&
        client->receivers->reserved(client, &message->reserved) != 0) {
        return -1;
    }
    if (message->type == TLP_WORKSPACE_LENT &&
        client->receivers->workspace_lent(client, &message->workspace_lent) != 0) {
        return -1;
    }
    p->reply = *message;
    p->progress = TL_DONE;
    return 0;
}

static int dispatch(tierline_client *client, const struct tlp_header *header,
                    const struct tlp_message *message) {
    switch (message->type) {
    case TLP_FDS:
        return message->fds.kind == TLP_DESCRIPTOR_KIND_WORKSPACE ||
                       message->fds.kind == TLP_DESCRIPTOR_KIND_BACKUP
                   ? client->receivers->workspace_descriptors(client, &message->fds)
                   : client->receivers->arena_descriptors(client, &message->fds);
    case TLP_REVOKE:
        client->job.revoke_asked = message->revoke.job;
        return 0;
    default:
        return complete(client, header, message);
    }
}

/* Takes in what has arrived; breaks the link if it cannot be believed. */
static void take_in(tierline_client *client) {
    int state = tl_connection_receive(&client->connection);
    while (state > 0) {
        struct tlp_header header;
        struct tlp_message message;
        state = tl_connection_next(&client->connection, &header, &message);
        if (state > 0) {
            state = dispatch(client, &header, &message) == 0 ? 1 : -1;
            tl_connection_drop_frame(&client->connection, &header);
        }
    }
    if (state < 0) {
        tl_break_link(client);
    }
    tl_event_announce(&client->changed);
}

void tl_pump(tierline_client *client, int timeout_ms) {
    if (client->link != TL_LINK_UP) {
        return;
    }
    if (client->reading) {
        tl_event_wait(&client->changed, &client->lock, (uint64_t)timeout_ms * 1000000U);
        return;
    }
    client->reading = true;
    tl_lock_release(&client->lock);
    int ready = tl_connection_poll(&client->connection, timeout_ms);
    tl_lock_acquire(&client->lock);
    client->reading = false;
    if (ready != 0 && client->link == TL_LINK_UP) {
        take_in(client);
    } else {
        tl_event_announce(&client->changed);
    }
}

void tl_look(tierline_client *client) {
    if (client->link == TL_LINK_UP && !client->reading) {
        take_in(client);
    }
}

/* Tries until the agent is there again, refuses for good, or the time for it is over. Without the
 * lock. */
static int attach_patiently(tierline_client *client, bool once) {
    uint64_t end_ns = tl_now_ns() + client->reconnect_ns;
    int pause_ms = FIRST_PAUSE_MS;
    int code = tl_attach(client);
    while (code != 0 && !once && !client->offer.refused && tl_now_ns() < end_ns) {
        poll(NULL, 0, pause_ms);
        int longest_ms = client->offer.answered ? LONGEST_ANSWERED_PAUSE_MS : LONGEST_PAUSE_MS;
        pause_ms = pause_ms * 2 < longest_ms ? pause_ms * 2 : longest_ms;
        code = tl_attach(client);
    }
    return code;
}

/* Notes what the new connection will be offered; arenas that are not sealed are lost. */
static void prepare_offer(tierline_client *client) {
    const struct tl_job *job = &client->job;
    client->offer = (struct tl_offer){
        .running_job = job->granted && !job->revoked && !job->yielding ? job->number : 0,
        .job_arena = job->arena,
        .release_ns = job->release_ns,
        .deadline_ns = job->deadline_ns,
        .reach_bytes = client->workspace.reach_bytes,
        .sealed_arenas = tl_sealed_arenas(client),
        .lease = TL_NO_DESCRIPTOR};
    for (size_t i = 0; i < TIERLINE_MAX_ARENAS; i++) {
        if (client->arenas[i].state == TL_ARENA_LOADING) {
            client->arenas[i].state = TL_ARENA_LOST;
        }
    }
}

/* What is true of a connection that has just been made. */
static void connected(tierline_client *client) {
    client->gave_up = false;
    tl_cached_lease_replace(&client->lease, client->offer.lease);
    client->warmups_take = client->offer.warmups_take;
    client->job.taken = false; /* the agent knows the job by what it was offered */
    client->untold_bytes = 0;
    client->generation++;
    client->backend->connected();
    if (client->offer.revoked_job != 0) {
        client->job.revoke_asked = client->offer.revoked_job;
    }
}

static int attach(tierline_client *client, bool patiently) {
    if (client->refused) {
        return tl_fail(TIERLINE_E_NOT_ADMITTED,
                       "nothing is asked of the agent at %s any more: %.200s", client->socket_path,
                       client->connection.reason);
    }
    bool once = !patiently || client->gave_up;
    client->link = TL_LINK_ATTACHING;
    prepare_offer(client);
    tl_lock_release(&client->lock);
    int code = attach_patiently(client, once);
    tl_lock_acquire(&client->lock);
    client->link = code == 0 ? TL_LINK_UP : TL_LINK_DOWN;
    client->refused = client->offer.refused;
    if (code == 0) {
        connected(client);
    }
    tl_event_announce(&client->changed);
    return code;
}

int tl_try_to_connect(tierline_client *client) {
    return attach(client, false);
}

int tl_ensure_connected(tierline_client *client) {
    uint32_t failures = client->failures;
    while (client->link != TL_LINK_UP) {
        if (client->failures != failures) {
            return tl_fail(TIERLINE_E_CONNECTION, "the agent at %s cannot be reached: %.200s",
                           client->socket_path, client->reason);
        }
        if (client->link == TL_LINK_ATTACHING || client->reading || client->watching) {
            tl_event_wait(&client->changed, &client->lock, SLICE_NS);
            continue;
        }
        int code = attach(client, true);
        if (code != 0) {
            client->gave_up = true;
            client->failures++;
            memcpy(client->reason, client->connection.reason, sizeof client->reason);
            return code;
        }
    }
    return 0;
}

static void send_bytes(tierline_client *client, size_t length) {
    if (tl_connection_send(&client->connection, client->frame, length, NULL, 0) != 0) {
        tl_break_link(client);
    }
}

/* What was left to be told, at the head of `frame`. Returns its bytes. */
static size_t put_untold(tierline_client *client) {
    size_t length = client->untold_bytes;
    memcpy(client->frame, client->untold, length);
    client->untold_bytes = 0;
    return length;
}

static int send_frame(tierline_client *client, const struct tlp_message *message,
                      uint32_t sequence) {
    size_t before = put_untold(client);
    size_t length = tlp_encode(message, sequence, client->frame + before, TLP_MAX_FRAME);
    if (before + length > 0) {
        send_bytes(client, before + length);
    }
    return length != 0 ? 0
                       : tl_fail(TIERLINE_E_ARGUMENT, "message %u does not fit a frame of %u bytes",
                                 message->type, TLP_MAX_FRAME);
}

void tl_tell(tierline_client *client) {
    if (client->link != TL_LINK_UP) {
        client->untold_bytes = 0; /* the next agent would not know these jobs */
    } else if (client->untold_bytes > 0) {
        send_bytes(client, put_untold(client));
    }
}

void tl_tell_later(tierline_client *client, const struct tlp_message *message) {
    if (client->untold_bytes + TL_UNTOLD_FRAME > sizeof client->untold) {
        tl_tell(client);
    }
    client->untold_bytes +=
        tlp_encode(message, 0, client->untold + client->untold_bytes, TL_UNTOLD_FRAME);
}

/* 0 is what unasked messages carry. */
static uint32_t next_sequence(tierline_client *client) {
    client->next_sequence += client->next_sequence == UINT32_MAX ? 2 : 1;
    return client->next_sequence;
}

int tl_send_one_way(tierline_client *client, const struct tlp_message *message) {
    int code = tl_ensure_connected(client);
    return code != 0 ? code : send_frame(client, message, 0);
}

int tl_send_unawaited(tierline_client *client, const struct tlp_message *message) {
    int code = tl_ensure_connected(client);
    if (code == 0) {
        client->unawaited = next_sequence(client);
        code = send_frame(client, message, client->unawaited);
    }
    return code;
}

static void unlink_pending(tierline_client *client, struct tl_pending *pending) {
    struct tl_pending **at = &client->pending;
    while (*at != pending) {
        at = &(*at)->next;
    }
    *at = pending->next;
}

/* Sends once and waits for the answer or the loss of the connection. */
static int ask(tierline_client *client, const struct tlp_message *message,
               struct tl_pending *pending) {
    pending->progress = TL_WAITING;
    pending->sequence = next_sequence(client);
    pending->next = client->pending;
    client->pending = pending;
    int code = send_frame(client, message, pending->sequence);
    while (code == 0 && pending->progress == TL_WAITING) {
        tl_pump(client, WAIT_SLICE_MS);
    }
    unlink_pending(client, pending);
    return code;
}

static int request(tierline_client *client, const struct tlp_message *message, uint16_t expected,
                   struct tlp_message *reply, enum tl_persistence persistence) {
    struct tl_pending pending = {.expected = expected};
    uint32_t generation = client->generation;
    for (int losses = 0; losses < MOST_LOSSES; losses++) {
        int code = tl_ensure_connected(client);
        if (code != 0) {
            return code;
        }
        if (persistence == TL_FAIL_ON_RECONNECT && client->generation != generation) {
            break;
        }
        code = ask(client, message, &pending);
        if (code != 0) {
            return code;
        }
        if (pending.progress == TL_DONE) {
            if (pending.reply.type == TLP_ERROR) {
                return tl_fail(-(int)pending.reply.error.code, "the agent refused: %s",
                               pending.reply.error.reason);
            }
            *reply = pending.reply;
            return 0;
        }
        if (persistence == TL_FAIL_ON_RECONNECT) {
            break;
        }
    }
    return tl_fail(persistence == TL_FAIL_ON_RECONNECT ? TIERLINE_E_RETRY : TIERLINE_E_CONNECTION,
                   "the connection to the agent at %s broke during a request: %.200s",
                   client->socket_path, client->reason);
}

int tl_request(tierline_client *client, const struct tlp_message *message, uint16_t expected,
               struct tlp_message *reply, enum tl_persistence persistence) {
    tl_waits_begin(client);
    int code = request(client, message, expected, reply, persistence);
    tl_waits_end(client);
    return code;
}

void tl_waits_begin(tierline_client *client) {
    __atomic_add_fetch(&client->waiting, 1, __ATOMIC_RELAXED);
}

void tl_waits_end(tierline_client *client) {
    __atomic_sub_fetch(&client->waiting, 1, __ATOMIC_RELAXED);
}

uint32_t tierline_waiting(const tierline_client *client) {
    return __atomic_load_n(&client->waiting, __ATOMIC_RELAXED);
}
