/* A client's life: connect, terms, reports, close, and what fork leaves of it.
 *
 * Invariant: every living client is in `clients`, so that a fork's child can drop all of them
 * before it runs any code of its own.
 */
#include "client.h"
#include "launch_gates.h"
#include "swap_client.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define MOST_CLIENTS 8U
#define DEFAULT_RECONNECT_S 30.0
#define SECOND_NS 1e9

/* What glibc's pthread_atfork calls. musl lacks it, and must still load this library. */
extern int __register_atfork(void (*before)(void), void (*parent)(void), void (*child)(void),
                             void *library) __attribute__((weak));
extern void *__dso_handle __attribute__((visibility("hidden")));

static tierline_client *clients[MOST_CLIENTS];
static struct tl_lock clients_lock;
static bool watching_forks;

/* The child must not speak on the parent's socket, nor keep it open when the parent dies, nor read
 * a ring that is filled for the parent's jobs. Locks may be held by threads that are not here. */
static void drop_in_child(void) {
    clients_lock.word = 0;
    for (size_t i = 0; i < MOST_CLIENTS; i++) {
        tierline_client *client = clients[i];
        if (client == NULL) {
            continue;
        }
        client->lock.word = 0;
        client->dropped = true;
        if (client->device == TIERLINE_DEVICE_CUDA) {
            tl_gates_forget();
            tl_swap_forget();
        }
        tl_workspace_close(client, true);
        tl_connection_close(&client->connection);
        tl_open_lease_replace(&client->lease, -1);
        if (client->staging_descriptor >= 0) {
            close(client->staging_descriptor);
            client->staging_descriptor = -1;
        }
        if (client->staging != NULL) {
            munmap(client->staging, client->staging_slots * client->terms.extent_bytes);
            client->staging = NULL;
        }
        for (size_t a = 0; a < TIERLINE_MAX_ARENAS; a++) {
            if (client->arenas[a].state != TL_ARENA_NONE) {
                tl_arena_abandon(&client->arenas[a]);
            }
        }
        clients[i] = NULL;
    }
}

/* The last jobs may not be told of yet. Who has a lock then may have ended with it. */
static void tell_at_exit(void) {
    if (!tl_lock_try(&clients_lock)) {
        return;
    }
    for (size_t i = 0; i < MOST_CLIENTS; i++) {
        if (clients[i] != NULL && tl_lock_try(&clients[i]->lock)) {
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
        watching_forks = __register_atfork != NULL &&
                         __register_atfork(NULL, NULL, drop_in_child, &__dso_handle) == 0 &&
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

uint32_t tl_sealed_arenas(const tierline_client *client) {
    uint32_t sealed = 0;
    for (uint32_t a = 0; a < TIERLINE_MAX_ARENAS; a++) {
        sealed |= client->arenas[a].state == TL_ARENA_SEALED ? 1U << a : 0;
    }
    return sealed;
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

/* Copies a name that fits the protocol's field: cut at a whole character. */
static void copy_name(char out[64], const char *name) {
    size_t used = strnlen(name, 63);
    while (used > 0 && name[used] != 0 && ((uint8_t)name[used] & 0xc0) == 0x80) {
        used--;
    }
    memset(out, 0, 64);
    memcpy(out, name, used);
}

int tl_check_usable(tierline_client *client) {
    if (client == NULL) {
        return tl_fail(TIERLINE_E_ARGUMENT, "there is no client");
    }
    if (client->dropped) {
        return tl_fail(TIERLINE_E_FORKED,
                       "this process was forked from the one that connected; connect again");
    }
    return 0;
}

int tierline_connect(const char *socket_path, const char *process_name, tierline_client **out) {
    return tierline_connect_device(socket_path, process_name, TIERLINE_DEVICE_CPU, out);
}

int tierline_connect_device(const char *socket_path, const char *process_name, uint32_t device,
                            tierline_client **out) {
    return device == TIERLINE_DEVICE_CUDA && out != NULL && tl_swap_wanted()
               ? tl_swap_share(out)
               : tl_connect(socket_path, process_name, device, out);
}

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
    copy_name(client->process_name, process_name);
    client->reconnect_ns = reconnect_time_ns();
    client->device = device;
    client->memory = device == TIERLINE_DEVICE_CUDA ? &tl_device_memory : &tl_host_memory;
    client->connection.socket = -1;
    client->staging_descriptor = -1;
    client->lease.descriptor = -1;
    client->gave_up = true; /* the first connection is tried once */
    for (size_t i = 0; i < TIERLINE_MAX_ARENAS; i++) {
        client->arenas[i].control_descriptor = -1;
    }
    int code = register_client(client);
    code = code == 0 && device == TIERLINE_DEVICE_CUDA ? tl_gates_adopt(client) : code;
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

void tierline_close(tierline_client *client) {
    if (client != NULL && !tl_swap_owns(client)) {
        tl_close(client);
    }
}

void tl_close(tierline_client *client) {
    if (client->device == TIERLINE_DEVICE_CUDA && !client->dropped) {
        tl_gates_settle(client); /* what cannot be settled ends with the connection */
        tl_gates_disown(client);
    }
    if (!client->dropped) {
        tl_lock_acquire(&client->lock);
        tl_tell(client);
        tl_lock_release(&client->lock);
    }
    tl_keeper_stop(client);
    forget_client(client);
    for (uint32_t i = 0; i < TIERLINE_MAX_ARENAS; i++) {
        if (client->arenas[i].state != TL_ARENA_NONE) {
            tl_faults_forget(client, i);
            tl_arena_destroy(&client->arenas[i]);
        }
    }
    tl_workspace_close(client, client->dropped);
    tl_connection_close(&client->connection);
    tl_open_lease_replace(&client->lease, -1);
    if (client->staging != NULL) {
        munmap(client->staging, client->staging_slots * client->terms.extent_bytes);
    }
    if (client->staging_descriptor >= 0) {
        close(client->staging_descriptor);
    }
    free(client);
}

int tierline_get_terms(tierline_client *client, tierline_terms *out) {
    int code = tl_check_usable(client);
    if (code == 0) {
        *out = client->terms;
    }
    return code;
}

static int send_report(tierline_client *client, const struct tlp_message *message) {
    int code = tl_check_usable(client);
    if (code == 0) {
        tl_lock_acquire(&client->lock);
        code = tl_send_one_way(client, message);
        tl_lock_release(&client->lock);
    }
    return code;
}

static int ask(tierline_client *client, const struct tlp_message *message, uint16_t expected,
               struct tlp_message *reply) {
    int code = tl_check_usable(client);
    if (code == 0) {
        tl_lock_acquire(&client->lock);
        code = tl_request(client, message, expected, reply, TL_REPEAT_AFTER_RECONNECT);
        tl_lock_release(&client->lock);
    }
    return code;
}

int tierline_output(tierline_client *client, uint64_t job, const uint8_t input_digest[32],
                    const uint8_t output_digest[32]) {
    struct tlp_message message = {.type = TLP_OUTPUT};
    message.output.job = job;
    memcpy(message.output.input_digest, input_digest, TL_DIGEST_BYTES);
    memcpy(message.output.output_digest, output_digest, TL_DIGEST_BYTES);
    return send_report(client, &message);
}

int tierline_notice(tierline_client *client, uint32_t kind, uint64_t size_bytes, const char *text) {
    struct tlp_message message = {.type = TLP_NOTICE};
    message.notice.kind = kind;
    message.notice.size_bytes = size_bytes;
    if (text == NULL || strlen(text) >= sizeof message.notice.text) {
        return tl_fail(TIERLINE_E_ARGUMENT, "sending a notice: its text is missing or longer than "
                                            "191 bytes");
    }
    memcpy(message.notice.text, text, strlen(text));
    return send_report(client, &message);
}

int tierline_ready(tierline_client *client, uint32_t flags, uint64_t *epoch_ns,
                   uint64_t *until_ns) {
    struct tlp_message message = {.type = TLP_READY};
    message.ready.flags = flags;
    struct tlp_message reply;
    int code = ask(client, &message, TLP_START, &reply);
    if (code == 0) {
        *epoch_ns = reply.start.epoch_ns;
        *until_ns = reply.start.until_ns;
    }
    return code;
}

static void put_layers(uint8_t *wire, const tierline_layer_profile *layers, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) {
        struct tlp_layer_profile layer = {.weight_bytes = layers[i].weight_bytes,
                                          .compute_ns = layers[i].compute_ns,
                                          .flags = layers[i].flags};
        copy_name(layer.name, layers[i].name);
        tlp_put_layer_profile(wire, i, &layer);
    }
}

int tierline_profile(tierline_client *client, uint32_t arena, const tierline_layer_profile *layers,
                     uint32_t layer_count, uint64_t workspace_bytes) {
    uint32_t most = TLP_MAX_PROFILE_ITEMS;
    uint8_t *wire = malloc((size_t)most * TLP_LAYER_PROFILE_BYTES);
    if (wire == NULL) {
        return tl_fail(TIERLINE_E_NO_MEMORY, "sending a profile: out of memory");
    }
    int code = 0;
    uint32_t first = 0;
    do {
        uint32_t count = layer_count - first < most ? layer_count - first : most;
        put_layers(wire, layers + first, count);
        struct tlp_message message = {.type = TLP_PROFILE};
        message.profile.arena = arena;
        message.profile.layer_count = count;
        message.profile.first_layer = first;
        message.profile.total_layers = layer_count;
        message.profile.workspace_bytes = workspace_bytes;
        message.profile.layers = wire;
        struct tlp_message reply;
        code = ask(client, &message, TLP_PROFILED, &reply);
        first += count;
    } while (code == 0 && first < layer_count);
    free(wire);
    return code;
}

int tierline_get_statistics(tierline_client *client, tierline_statistics *out) {
    struct tlp_message message = {.type = TLP_STATS};
    struct tlp_message reply;
    int code = ask(client, &message, TLP_STATISTICS, &reply);
    if (code == 0) {
        *out = (tierline_statistics){.jobs = reply.statistics.jobs,
                                     .misses = reply.statistics.misses,
                                     .streamed_bytes = reply.statistics.streamed_bytes,
                                     .response_worst_ns = reply.statistics.response_worst_ns};
    }
    return code;
}
