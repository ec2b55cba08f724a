/* Loading an arena: reserve, store through staging memory, seal, free.
 *
 * On a GPU extents that the program may have written are stored again, in the sealed arena. A
 * client that reconnects meanwhile still has them, and stores them again.
 *
 * Invariant: an arena that is not sealed exists for one connection only. When that breaks the
 * arena is lost, every call on it says TIERLINE_E_RETRY, and the caller frees it and starts again:
 * the agent has forgotten what was stored in it.
 *
 * Invariant: an arena's memory is mapped and given back without the client's lock. On a GPU the
 * driver may wait there until the GPU is done, which may stand at a gate until the monitor lets it
 * go on, and that needs the lock.
 */
#include "loading/load.h"

#include "arena/addresses.h"
#include "cuda/device_memory.h"
#include "link/request.h"
#include "loading/faults.h"
#include "loading/forks.h"
#include "loading/origins.h"
#include "loading/staging.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int tl_inbox_reserved(tierline_client *client, const struct tlp_reserved *reserved) {
    struct tl_inbox *inbox = &client->inbox;
    if (!inbox->open || inbox->placed || reserved->arena != inbox->arena ||
        reserved->extent_count != inbox->extent_count ||
        reserved->resident_count > inbox->extent_count ||
        reserved->ring_slots > TL_MAX_RING_SLOTS) {
        snprintf(client->connection.reason, sizeof client->connection.reason,
                 "the agent reserved %u extents (%u resident, %u ring slots) where %u were asked",
                 reserved->extent_count, reserved->resident_count, reserved->ring_slots,
                 inbox->extent_count);
        return -1;
    }
    for (uint32_t e = 0; e < inbox->extent_count; e++) {
        inbox->placement[e] = tlp_get_u32(reserved->placement, e);
    }
    inbox->resident_count = reserved->resident_count;
    inbox->ring_slots = reserved->ring_slots;
    inbox->placed = true;
    return 0;
}

/* Where the descriptors of a frame belong, or NULL if they were not announced. */
static struct tl_descriptor *inbox_place(struct tl_inbox *inbox, const struct tlp_fds *fds) {
    struct tl_descriptor *place;
    uint32_t limit;
    switch (fds->kind) {
    case TLP_DESCRIPTOR_KIND_RESIDENT:
        place = inbox->resident;
        limit = inbox->resident_count;
        break;
    case TLP_DESCRIPTOR_KIND_RING:
        place = inbox->ring;
        limit = inbox->ring_slots;
        break;
    case TLP_DESCRIPTOR_KIND_CONTROL:
        place = &inbox->control;
        limit = 1;
        break;
    default:
        return NULL;
    }
    if (!inbox->open || !inbox->placed || fds->arena != inbox->arena || fds->first > limit ||
        fds->count > limit - fds->first) {
        return NULL;
    }
    for (uint32_t i = 0; i < fds->count; i++) {
        if (place[fds->first + i].number >= 0) {
            return NULL;
        }
    }
    return place + fds->first;
}

int tl_inbox_descriptors(tierline_client *client, const struct tlp_fds *fds) {
    struct tl_descriptor *place = inbox_place(&client->inbox, fds);
    if (place == NULL) {
        snprintf(client->connection.reason, sizeof client->connection.reason,
                 "the agent sent descriptors of kind %u that it had not announced", fds->kind);
        return -1;
    }
    if (tl_connection_claim(&client->connection, fds->count, place) != 0) {
        return -1;
    }
    client->inbox.received += fds->count;
    return 0;
}

/* The arena, if it can be loaded now. */
static int check_loading(tierline_client *client, uint32_t index, const char *doing) {
    if (index >= TIERLINE_MAX_ARENAS) {
        return tl_fail(TIERLINE_E_ARGUMENT, "%s arena %u: there are %u", doing, index,
                       TIERLINE_MAX_ARENAS);
    }
    switch (client->arenas[index].state) {
    case TL_ARENA_LOADING:
        return 0;
    case TL_ARENA_LOST:
        return tl_fail(TIERLINE_E_RETRY,
                       "%s arena %u: the connection broke while it was loaded; free it and load "
                       "it again",
                       doing, index);
    case TL_ARENA_SEALED:
        return tl_fail(TIERLINE_E_STATE, "%s arena %u: it is sealed", doing, index);
    default:
        return tl_fail(TIERLINE_E_STATE, "%s arena %u: it is not reserved", doing, index);
    }
}

/* Waits for the descriptors that follow RESERVED. */
static int collect_descriptors(tierline_client *client, uint32_t generation) {
    struct tl_inbox *inbox = &client->inbox;
    while (inbox->received < inbox->resident_count + inbox->ring_slots + 1) {
        if (client->link != TL_LINK_UP || client->generation != generation) {
            return tl_fail(TIERLINE_E_RETRY,
                           "the connection to the agent broke while an arena was reserved: %.200s",
                           client->reason);
        }
        tl_pump(client, 1000);
    }
    return 0;
}

/* Has the arena's memory made, without the lock; the arena stays. */
static int make(tierline_client *client, struct tl_arena *arena, int (*step)(struct tl_arena *)) {
    arena->users++;
    tl_lock_release(&client->lock);
    int code = step(arena);
    tl_lock_acquire(&client->lock);
    arena->users--;
    tl_event_announce(&client->changed);
    return code;
}

/* Gives its memory back, without the lock, and then the arena. */
static void take_down(tierline_client *client, struct tl_arena *arena) {
    arena->state = TL_ARENA_LEAVING;
    tl_lock_release(&client->lock);
    arena->memory->release(arena);
    tl_lock_acquire(&client->lock);
    tl_arena_destroy(arena);
}

static int reserve_locked(tierline_client *client, uint32_t index, uint64_t pinned_bytes,
                          uint32_t largest_span_extents) {
    struct tl_arena *arena = &client->arenas[index];
    uint32_t generation = client->generation;
    client->inbox = (struct tl_inbox){.open = true,
                                      .arena = index,
                                      .extent_count = arena->extent_count,
                                      .placement = arena->placement,
                                      .resident = arena->resident,
                                      .ring = arena->ring,
                                      .control = TL_NO_DESCRIPTOR};
    struct tlp_message message = {.type = TLP_RESERVE};
    message.reserve.arena = index;
    message.reserve.largest_span_extents = largest_span_extents;
    message.reserve.weight_bytes = arena->weight_bytes;
    message.reserve.pinned_bytes = pinned_bytes;
    struct tlp_message reply;
    int code = tl_request(client, &message, TLP_RESERVED, &reply, TL_FAIL_ON_RECONNECT);
    code = code == 0 ? collect_descriptors(client, generation) : code;
    arena->control_descriptor = client->inbox.control;
    arena->resident_count = client->inbox.resident_count;
    arena->ring_slots = client->inbox.ring_slots;
    client->inbox.open = false;
    code = code == 0 ? tl_arena_place(arena) : code;
    return code == 0 ? make(client, arena, tl_arena_accept) : code;
}

int tierline_reserve(tierline_client *client, uint32_t index, uint64_t weight_bytes,
                     uint64_t pinned_bytes, uint32_t largest_span_extents, void **base) {
    int code = tl_check_usable(client);
    code = code == 0 && client->device == TIERLINE_DEVICE_CPU ? tl_faults_install() : code;
    if (code != 0) {
        return code;
    }
    if (index >= client->terms.max_arenas || weight_bytes == 0 || pinned_bytes > weight_bytes ||
        weight_bytes > INT64_MAX || base == NULL) {
        return tl_fail(TIERLINE_E_ARGUMENT,
                       "reserving arena %u of %u with %llu bytes, %llu of them pinned", index,
                       client->terms.max_arenas, (unsigned long long)weight_bytes,
                       (unsigned long long)pinned_bytes);
    }
    tl_lock_acquire(&client->lock);
    while (client->inbox.open) {
        tl_event_wait(&client->changed, &client->lock, TL_FOREVER);
    }
    code = tl_ensure_connected(client);
    struct tl_arena *arena = &client->arenas[index];
    if (code == 0 && arena->state != TL_ARENA_NONE) {
        code = tl_fail(TIERLINE_E_STATE, "reserving arena %u: it exists; free it first", index);
    }
    if (code == 0 && client->device == TIERLINE_DEVICE_CUDA) {
        code = tl_device_check(client->terms.device_uuid);
    }
    if (code == 0) {
        code = tl_arena_create(arena, client->backend->memory, client->terms.extent_bytes,
                               weight_bytes, pinned_bytes);
        if (code == 0) {
            code = reserve_locked(client, index, pinned_bytes, largest_span_extents);
            code = code == 0 && client->device == TIERLINE_DEVICE_CPU
                       ? tl_addresses_watch(client, index, arena)
                       : code;
            if (code == 0) {
                *base = arena->base;
            } else {
                take_down(client, arena);
            }
            tl_event_announce(&client->changed);
        }
    }
    tl_lock_release(&client->lock);
    return code;
}

static bool may_be_written(const tierline_client *client, uint32_t index, uint32_t extent) {
    return index < TIERLINE_MAX_ARENAS && client->device == TIERLINE_DEVICE_CUDA &&
           client->arenas[index].state == TL_ARENA_SEALED &&
           extent < client->arenas[index].extent_count &&
           client->arenas[index].on_device.written[extent];
}

/* An arena takes bytes while it is loaded, and then those of extents that were written. */
static int check_storing(tierline_client *client, uint32_t index, uint32_t extent) {
    return may_be_written(client, index, extent) ? 0 : check_loading(client, index, "storing in");
}

static int store_from_slot(tierline_client *client, uint32_t index, uint32_t extent, uint32_t slot,
                           uint64_t length) {
    struct tlp_message message = {.type = TLP_STORE};
    message.store.arena = index;
    message.store.extent = extent;
    message.store.staging_slot = slot;
    message.store.length = length;
    struct tlp_message reply;
    int code = tl_request(client, &message, TLP_STORED, &reply, TL_FAIL_ON_RECONNECT);
    code = code == 0 ? check_storing(client, index, extent) : code;
    if (code != 0) {
        return code;
    }
    if (reply.stored.arena != index || reply.stored.extent != extent) {
        return tl_fail(TIERLINE_E_MALFORMED, "storing extent %u: the agent stored extent %u",
                       extent, reply.stored.extent);
    }
    struct tl_arena *arena = &client->arenas[index];
    memcpy(arena->digests + (size_t)extent * TL_DIGEST_BYTES, reply.stored.digest, TL_DIGEST_BYTES);
    arena->lengths[extent] = length;
    return 0;
}

int tierline_store(tierline_client *client, uint32_t index, uint32_t extent, const void *data,
                   uint64_t length) {
    int code = tl_check_usable(client);
    if (code != 0) {
        return code;
    }
    if (data == NULL) {
        return tl_fail(TIERLINE_E_ARGUMENT, "storing extent %u: there is no data", extent);
    }
    code = client->backend->settle(client);
    if (code != 0) {
        return code;
    }
    tl_lock_acquire(&client->lock);
    code = tl_ensure_connected(client);
    code = code == 0 ? check_storing(client, index, extent) : code;
    if (code == 0 && (extent >= client->arenas[index].extent_count || length == 0 ||
                      length > client->terms.extent_bytes)) {
        code = tl_fail(TIERLINE_E_ARGUMENT, "storing %llu bytes as extent %u of %u",
                       (unsigned long long)length, extent, client->arenas[index].extent_count);
    }
    if (code == 0) {
        uint32_t generation = client->generation;
        uint32_t slot = tl_take_staging_slot(client);
        uint8_t *staging = client->staging + (uint64_t)slot * client->terms.extent_bytes;
        /* The data may be another arena's weights: they are read without the lock. */
        tl_lock_release(&client->lock);
        memcpy(staging, data, length);
        tl_lock_acquire(&client->lock);
        code = check_storing(client, index, extent);
        if (code == 0 && client->generation != generation) {
            code = tl_fail(TIERLINE_E_RETRY, "storing extent %u: the connection broke", extent);
        }
        code = code == 0 ? store_from_slot(client, index, extent, slot, length) : code;
        tl_return_staging_slot(client, slot);
    }
    bool again = code == 0 && may_be_written(client, index, extent);
    tl_lock_release(&client->lock);
    return again ? client->backend->stored(client, index, extent) : code;
}

int tierline_written(tierline_client *client, uint32_t index, uint32_t *extents, uint32_t capacity,
                     uint32_t *count) {
    int code = tl_check_usable(client);
    if (code != 0) {
        return code;
    }
    if (client->device != TIERLINE_DEVICE_CUDA || index >= TIERLINE_MAX_ARENAS || count == NULL ||
        (extents == NULL && capacity > 0)) {
        return tl_fail(TIERLINE_E_ARGUMENT,
                       "asking what was written of arena %u: it is not one of a client on a GPU",
                       index);
    }
    *count = 0;
    tl_lock_acquire(&client->lock);
    for (uint32_t e = 0; e < client->arenas[index].extent_count; e++) {
        if (may_be_written(client, index, e)) {
            if (*count < capacity) {
                extents[*count] = e;
            }
            (*count)++;
        }
    }
    tl_lock_release(&client->lock);
    return 0;
}

static int check_complete(const struct tl_arena *arena) {
    for (uint32_t e = 0; e < arena->extent_count; e++) {
        if (arena->lengths[e] == 0) {
            return tl_fail(TIERLINE_E_STATE, "sealing an arena: extent %u of %u was never stored",
                           e, arena->extent_count);
        }
    }
    return 0;
}

static int seal_locked(tierline_client *client, uint32_t index, const tierline_layer *layers,
                       uint32_t layer_count, uint8_t *digest) {
    struct tl_arena *arena = &client->arenas[index];
    int code = check_complete(arena);
    code = code == 0 ? tl_arena_set_layers(arena, layers, layer_count) : code;
    uint8_t *wire = code == 0 ? malloc((size_t)layer_count * TLP_LAYER_SPAN_BYTES + 1) : NULL;
    if (code == 0 && wire == NULL) {
        code = tl_fail(TIERLINE_E_NO_MEMORY, "sealing arena %u: out of memory", index);
    }
    if (code != 0) {
        return code;
    }
    for (uint32_t l = 0; l < layer_count; l++) {
        struct tlp_layer_span span = {layers[l].first_extent, layers[l].last_extent};
        tlp_put_layer_span(wire, l, &span);
    }
    struct tlp_message message = {.type = TLP_SEAL};
    message.seal.arena = index;
    message.seal.layer_count = layer_count;
    message.seal.layers = wire;
    struct tlp_message reply;
    code = tl_request(client, &message, TLP_SEALED, &reply, TL_FAIL_ON_RECONNECT);
    free(wire);
    code = code == 0 ? check_loading(client, index, "sealing") : code;
    if (code == 0 && reply.sealed.arena != index) {
        code = tl_fail(TIERLINE_E_MALFORMED, "sealing arena %u: the agent sealed arena %u", index,
                       reply.sealed.arena);
    }
    code = code == 0 ? make(client, arena, arena->memory->map) : code;
    code = code == 0 ? check_loading(client, index, "sealing") : code;
    if (code == 0) {
        arena->state = TL_ARENA_SEALED;
        if (digest != NULL) {
            memcpy(digest, reply.sealed.digest, TL_DIGEST_BYTES);
        }
    }
    return code;
}

int tierline_seal(tierline_client *client, uint32_t index, const tierline_layer *layers,
                  uint32_t layer_count, uint8_t digest[32]) {
    int code = tl_check_usable(client);
    code = code == 0 && client->device == TIERLINE_DEVICE_CPU ? tl_faults_install() : code;
    if (code != 0) {
        return code;
    }
    if (client->device == TIERLINE_DEVICE_CUDA && !tl_device_gated()) {
        return tl_fail(TIERLINE_E_STATE,
                       "sealing arena %u: launches of this process are not seen; start it with "
                       "libtierline.so in LD_PRELOAD",
                       index);
    }
    if (layer_count > TLP_MAX_SEAL_ITEMS || (layers == NULL && layer_count > 0)) {
        return tl_fail(TIERLINE_E_ARGUMENT, "sealing arena %u: %u layers are more than %u", index,
                       layer_count, TLP_MAX_SEAL_ITEMS);
    }
    tl_lock_acquire(&client->lock);
    code = tl_ensure_connected(client);
    code = code == 0 ? check_loading(client, index, "sealing") : code;
    code = code == 0 ? seal_locked(client, index, layers, layer_count, digest) : code;
    tl_lock_release(&client->lock);
    return code == 0 ? client->backend->show(client) : code;
}

static int free_locked(tierline_client *client, uint32_t index) {
    struct tl_arena *arena = &client->arenas[index];
    bool known = arena->state != TL_ARENA_LOST;
    uint32_t generation = client->generation;
    tl_origins_forget(client, index);
    tl_addresses_forget(client, index);
    arena->state = TL_ARENA_LEAVING;
    tl_lock_release(&client->lock);
    /* Before its memory goes: calls do not name it any more. */
    int shown = client->backend->show(client);
    tl_lock_acquire(&client->lock);
    take_down(client, arena);
    /* An agent that came back never heard of the arena: it was not offered. */
    if (!known || client->generation != generation) {
        return shown;
    }
    struct tlp_message message = {.type = TLP_FREE};
    message.free.arena = index;
    struct tlp_message reply;
    int code = tl_request(client, &message, TLP_FREED, &reply, TL_FAIL_ON_RECONNECT);
    if (code == 0 && reply.freed.arena != index) {
        return tl_fail(TIERLINE_E_MALFORMED, "freeing arena %u: the agent freed arena %u", index,
                       reply.freed.arena);
    }
    return code == 0 || code == TIERLINE_E_RETRY ? shown : code;
}

int tierline_free(tierline_client *client, uint32_t index) {
    int code = tl_check_usable(client);
    if (code != 0) {
        return code;
    }
    if (index >= TIERLINE_MAX_ARENAS) {
        return tl_fail(TIERLINE_E_ARGUMENT, "freeing arena %u: there are %u", index,
                       TIERLINE_MAX_ARENAS);
    }
    code = client->backend->settle(client);
    if (code != 0) {
        return code;
    }
    tl_lock_acquire(&client->lock);
    struct tl_arena *arena = &client->arenas[index];
    code = tl_ensure_connected(client);
    while (code == 0 && (arena->users > 0 || tl_forks_complete(client, index))) {
        if (arena->users > 0) {
            tl_event_wait(&client->changed, &client->lock, TL_FOREVER);
        }
        code = tl_ensure_connected(client);
    }
    if (code == 0 && arena->state == TL_ARENA_NONE) {
        code = tl_fail(TIERLINE_E_STATE, "freeing arena %u: it is not reserved", index);
    } else if (code == 0 && client->job.active && client->job.arena == index) {
        code = tl_fail(TIERLINE_E_STATE, "freeing arena %u: a job reads it", index);
    } else if (code == 0 && arena->state == TL_ARENA_LEAVING) {
        code = tl_fail(TIERLINE_E_STATE, "freeing arena %u: another thread frees it", index);
    } else if (code == 0) {
        code = free_locked(client, index);
    }
    tl_lock_release(&client->lock);
    return code;
}
