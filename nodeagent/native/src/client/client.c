/* A client's life: connect, close, and what fork leaves of it.
 *
 * Invariant: every living client is in `clients`, so that a fork's child can drop all of them
 * before it runs any code of its own.
 */
#include "client/client.h"

#include "arena/addresses.h"
#include "cuda/upload.h"
#include "driver/at_fork.h"
#include "gates/backend.h"
#include "jobs/host.h"
#include "lease/workspace.h"
#include "link/keeper.h"
#include "link/request.h"
#include "link/state.h"
#include "loading/forks.h"
#include "loading/load.h"
#include "loading/origins.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Those that a forked child inherits, and forked children of children, are among them. */
#define MOST_CLIENTS 32U
#define DEFAULT_RECONNECT_S 30.0
#define SECOND_NS 1e9

static tierline_client *clients[MOST_CLIENTS];
static struct tl_lock clients_lock;
static bool watching_forks;

static bool holding_clients;

static void before_fork(void) {
    holding_clients = tl_lock_acquire_within(&clients_lock, TL_FORK_PATIENCE_NS);
    for (size_t i = 0; i < MOST_CLIENTS; i++) {
        if (clients[i] != NULL) {
            tl_forks_begin(clients[i]);
        }
    }
}

static void after_fork_in_parent(void) {
    for (size_t i = 0; i < MOST_CLIENTS; i++) {
        if (clients[i] != NULL) {
            tl_forks_in_parent(clients[i]);
        }
    }
    if (holding_clients) {
        holding_clients = false;
        tl_lock_release(&clients_lock);
    }
}

/* The child must not speak on the parent's socket, nor keep it open when the parent dies, nor read
 * a ring that is filled for the parent's jobs. */
static void drop_in_child(tierline_client *client) {
    client->backend->forget();
    if (client->forget != NULL) {
        client->forget();
    }
    tl_workspace_close(client, true);
    tl_connection_close(&client->connection);
    tl_cached_lease_replace(&client->lease, TL_NO_DESCRIPTOR);
    if (client->staging != NULL) {
        munmap(client->staging, client->staging_slots * client->terms.extent_bytes);
        client->staging = NULL;
    }
}

/* Locks may be held by threads that are not here. */
static void after_fork_in_child(void) {
    holding_clients = false;
    clients_lock.word = 0;
    tl_origins_in_child();
    for (size_t i = 0; i < MOST_CLIENTS; i++) {
        if (clients[i] != NULL && !clients[i]->dropped) {
            drop_in_child(clients[i]);
        }
        if (clients[i] != NULL) {
            tl_forks_in_child(clients[i]);
        }
    }
}

static void complete_all(tierline_client *client) {
    for (uint32_t a = 0; a < TIERLINE_MAX_ARENAS; a++) {
        (void)tl_forks_complete(client, a);
    }
}

/* Children that live go on without this process; and the last jobs may not be told of yet. A thread
 * that has a lock then may have ended with it. */
static void tell_at_exit(void) {
    if (!tl_lock_try(&clients_lock)) {
        return;
    }
    for (size_t i = 0; i < MOST_CLIENTS; i++) {
        if (clients[i] != NULL && !clients[i]->dropped && tl_lock_try(&clients[i]->lock)) {
            complete_all(clients[i]);
            tl_tell(clients[i]);
            tl_lock_release(&clients[i]->lock);
        }
    }
    tl_lock_release(&clients_lock);
}

static int register_client(tierline_client *client) {
    int code = tl_fail(TIERLINE_E_NO_MEMORY, "more than %u clients in one process", MOST_CLIENTS);
    tl_lock_acquire(&clients_lock);
    if (!watching_forks) {
        watching_forks = at_fork(before_fork, after_fork_in_parent, after_fork_in_child) &&
                         atexit(tell_at_exit) == 0;
    }
    for (size_t i = 0; i < MOST_CLIENTS && code != 0 && watching_forks; i++) {
        if (clients[i] == NULL) {
            clients[i] = client;
            code = 0;
        }
    }
    tl_lock_release(&clients_lock);
    return code;
}

static void forget_client(const tierline_client *client) {
    tl_lock_acquire(&clients_lock);
    for (size_t i = 0; i < MOST_CLIENTS; i++) {
        if (clients[i] == client) {
            clients[i] = NULL;
        }
    }
    tl_lock_release(&clients_lock);
}

static uint64_t reconnect_time_ns(void) {
    const char *text = getenv("TIERLINE_RECONNECT_S");
    char *end = NULL;
    double seconds = text != NULL ? strtod(text, &end) : DEFAULT_RECONNECT_S;
    bool usable = text == NULL || (end != text && *end == 0 && seconds >= 0 && seconds < 1e6);
    return (uint64_t)((usable ? seconds : DEFAULT_RECONNECT_S) * SECOND_NS);
}

void tl_copy_name(char out[64], const char *name) {
    size_t used = strnlen(name, 63);
    while (used > 0 && name[used] != 0 && ((uint8_t)name[used] & 0xc0) == 0x80) {
        used--;
    }
    memset(out, 0, 64);
    memcpy(out, name, used);
}

static const struct tl_receivers receivers = {.reserved = tl_inbox_reserved,
                                              .arena_descriptors = tl_inbox_descriptors,
                                              .workspace_lent = tl_workspace_announced,
                                              .workspace_descriptors = tl_workspace_descriptors};

int tl_connect(const char *socket_path, const char *process_name, uint32_t device,
               tierline_client **out) {
    if (device > TIERLINE_DEVICE_CUDA) {
        return tl_fail(TIERLINE_E_ARGUMENT, "connecting to the agent: there is no device kind %u",
                       device);
    }
    if (socket_path == NULL || process_name == NULL || out == NULL ||
        strlen(socket_path) >= sizeof((tierline_client *)NULL)->socket_path) {
        return tl_fail(TIERLINE_E_ARGUMENT, "connecting to the agent: the socket's path is missing "
                                            "or longer than 107 bytes");
    }
    tierline_client *client = calloc(1, sizeof *client);
    if (client == NULL) {
        return tl_fail(TIERLINE_E_NO_MEMORY, "connecting to the agent: out of memory");
    }
    memcpy(client->socket_path, socket_path, strlen(socket_path) + 1);
    tl_copy_name(client->process_name, process_name);
    client->reconnect_ns = reconnect_time_ns();
    client->device = device;
    client->backend = device == TIERLINE_DEVICE_CUDA ? &tl_cuda_backend : &tl_host_backend;
    client->receivers = &receivers;
    client->connection.socket = TL_NO_DESCRIPTOR;
    client->lease.file = TL_NO_DESCRIPTOR;
    client->gave_up = true; /* the first connection is tried once */
    for (size_t i = 0; i < TIERLINE_MAX_ARENAS; i++) {
        client->arenas[i].control_descriptor = TL_NO_DESCRIPTOR;
    }
    int code = register_client(client);
    code = code == 0 ? client->backend->adopt(client) : code;
    if (code == 0) {
        tl_lock_acquire(&client->lock);
        code = tl_ensure_connected(client);
        tl_lock_release(&client->lock);
    }
    code = code == 0 ? tl_keeper_start(client) : code;
    if (code != 0) {
        tl_close(client);
        return code;
    }
    *out = client;
    return 0;
}

void tl_close(tierline_client *client) {
    if (!client->dropped) {
        client->backend->disown(client);
        tl_lock_acquire(&client->lock);
        complete_all(client);
        tl_tell(client);
        tl_lock_release(&client->lock);
    }
    tl_forks_stop(client);
    tl_keeper_stop(client);
    forget_client(client);
    for (uint32_t i = 0; i < TIERLINE_MAX_ARENAS; i++) {
        if (client->arenas[i].state != TL_ARENA_NONE) {
            tl_origins_forget(client, i);
            tl_addresses_forget(client, i);
            tl_arena_destroy(&client->arenas[i]);
        }
    }
    tl_workspace_close(client, client->dropped);
    tl_connection_close(&client->connection);
    tl_cached_lease_replace(&client->lease, TL_NO_DESCRIPTOR);
    if (client->staging != NULL) {
        tl_upload_unpin(client->staging);
        munmap(client->staging, client->staging_slots * client->terms.extent_bytes);
    }
    free(client);
}
