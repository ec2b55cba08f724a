/* The thread that keeps a client connected while its program does nothing.
 *
 * An agent that was restarted grants no job before all clients of the previous agent are back, or a
 * while has passed (recovery.py): one that came back only with its next job would hold up all the
 * others. And what an idle program's workspace lies in is lent to others unless it is offered back.
 * So somebody must notice, whatever the program does, that the agent is gone, and look for the next
 * one.
 *
 * While nobody is there to answer it tries often. An agent that answers, and will not have this
 * client or drops it at once, is asked more and more seldom: the program's next request asks, too.
 * One that will not take back what the client has is not asked again, by nobody: no agent will.
 *
 * Invariant: it takes part in the connection only as any other thread does: what it reads it hands
 * out under the lock, and an attempt of its own that fails is no failure of anybody's.
 */
#include "link/keeper.h"

#include "link/request.h"
#include "link/state.h"
#include "wire/threads.h"

#include <poll.h>
#include <sys/socket.h>

/* Another thread may connect again before this one polls, and the descriptor's number be somebody
 * else's by then. */
#define POLL_SLICE_MS 1000
#define SLICE_NS ((uint64_t)POLL_SLICE_MS * 1000000U)
#define LEAST_REST_NS 10000000U
#define MOST_REST_NS 50000000U
#define LEAST_ANSWERED_NS 1000000000U
#define MOST_ANSWERED_NS 10000000000U
/* A connection that lasted so long was none that the agent drops at once. */
#define STEADY_NS 1000000000U

static bool is_stopping(const tierline_client *client) {
    return atomic_load(&client->keeper.stopping);
}

/* Returns when the other end may have hung up. */
static void watch(tierline_client *client) {
    if (!tl_link_is_ours(client)) {
        return;
    }
    struct pollfd link = {.fd = client->connection.socket.number};
    client->watching = true;
    tl_lock_release(&client->lock);
    int ready = poll(&link, 1, POLL_SLICE_MS);
    tl_lock_acquire(&client->lock);
    client->watching = false;
    tl_event_announce(&client->changed);
    if (ready <= 0 || client->link != TL_LINK_UP) {
        return;
    }
    if (client->reading) {
        tl_event_wait(&client->changed, &client->lock, SLICE_NS); /* that thread hears it, too */
    } else {
        tl_look(client);
    }
}

/* Waits so long, or until somebody else connects. */
static void rest(tierline_client *client, uint64_t time_ns) {
    uint64_t end_ns = tl_now_ns() + time_ns;
    uint64_t now_ns = tl_now_ns();
    while (now_ns < end_ns && client->link == TL_LINK_DOWN && !is_stopping(client)) {
        tl_event_wait(&client->changed, &client->lock, end_ns - now_ns);
        now_ns = tl_now_ns();
    }
}

/* Makes an attempt if nobody else does. Returns how long to rest before the next one. */
static uint64_t look_for_agent(tierline_client *client, uint64_t rested_ns) {
    if (client->link != TL_LINK_DOWN || client->reading || client->refused) {
        tl_event_wait(&client->changed, &client->lock, SLICE_NS);
        return rested_ns;
    }
    tl_try_to_connect(client);
    bool answered = client->offer.answered;
    uint64_t least_ns = answered ? LEAST_ANSWERED_NS : LEAST_REST_NS;
    uint64_t most_ns = answered ? MOST_ANSWERED_NS : MOST_REST_NS;
    uint64_t next_ns = 2 * rested_ns < most_ns ? 2 * rested_ns : most_ns;
    return next_ns > least_ns ? next_ns : least_ns;
}

static void *keep(void *context) {
    tierline_client *client = context;
    uint64_t rest_ns = 0;
    tl_lock_acquire(&client->lock);
    while (!is_stopping(client)) {
        uint64_t since_ns = tl_now_ns();
        while (client->link == TL_LINK_UP && !is_stopping(client)) {
            watch(client);
        }
        rest_ns = tl_now_ns() - since_ns < STEADY_NS ? rest_ns : 0;
        rest(client, rest_ns);
        if (client->link != TL_LINK_UP && !is_stopping(client)) {
            rest_ns = look_for_agent(client, rest_ns);
        }
    }
    tl_lock_release(&client->lock);
    return NULL;
}

int tl_keeper_start(tierline_client *client) {
    int code = tl_thread_start(&client->keeper.thread, keep, client, "keeps the program connected");
    client->keeper.running = code == 0;
    return code;
}

void tl_keeper_stop(tierline_client *client) {
    if (!client->keeper.running || client->dropped) { /* a fork's child has no such thread */
        return;
    }
    tl_lock_acquire(&client->lock);
    atomic_store(&client->keeper.stopping, true);
    tl_break_link(client);
    tl_event_announce(&client->changed);
    tl_lock_release(&client->lock);
    pthread_join(client->keeper.thread, NULL);
    client->keeper.running = false;
}
