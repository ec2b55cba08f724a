/* What a program asks and tells the agent of itself. */
#include "client/client.h"
#include "link/request.h"
#include "link/state.h"

#include <stdlib.h>
#include <string.h>

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
        tl_copy_name(layer.name, layers[i].name);
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
