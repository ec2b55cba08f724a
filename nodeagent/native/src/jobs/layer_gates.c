/* Gates: a layer begins when its extents can be read, and gives back at its end what no later
 * layer reads.
 *
 * The stream delivers extents in one order, so two counts describe it: `published` (in place) and
 * `consumed` (given back). A layer ahead of the cursor waits until `published` covers it, giving
 * back on the way what the skipped layers would have read; a layer that the cursor has passed
 * cannot have its ring extents again and fetches private copies. A gate at which nothing changes
 * makes no system call; the socket is looked at when something changes, or after LOOK_NS.
 *
 * A gate is also where a job gives the device away (yields.c): before a layer begins, or while it
 * waits.
 *
 * Invariant: consumed <= opened <= published <= streamed_count, and an extent is closed before
 * `consumed` passes it.
 */
#include "jobs/job.h"
#include "jobs/yields.h"
#include "link/request.h"
#include "link/state.h"
#include "loading/fetch.h"

#define LOOK_NS 1000000U
#define WAIT_SLICE_NS 50000000U

static uint32_t published(const struct tl_arena *arena) {
    uint32_t word = __atomic_load_n(&arena->control->published, __ATOMIC_ACQUIRE);
    uint32_t count = word & ~TLP_YIELD_BIT;
    return count < arena->streamed_count ? count : arena->streamed_count;
}

/* Gives back the streamed extents below `upto`, as far as they have been published. */
static int give_back(struct tl_arena *arena, uint32_t upto) {
    uint32_t in_place = published(arena);
    uint32_t target = upto < in_place ? upto : in_place;
    if (target <= arena->consumed) {
        return 0;
    }
    int code = tl_arena_close(arena, arena->consumed, target);
    if (code == 0) {
        arena->consumed = target;
        arena->opened = arena->opened > target ? arena->opened : target;
        tierline_word_publish(&arena->control->consumed, target);
    }
    return code;
}

static bool streams(const tierline_client *client, uint32_t index) {
    const struct tl_job *job = &client->job;
    return job->granted && !job->revoked && !job->ending && !job->yielding && job->arena == index;
}

/* Waits without the lock until more is published, the agent asks for the device, the link breaks,
 * or a slice is over. */
static int wait_for_more(tierline_client *client, struct tl_arena *arena, uint32_t at_least) {
    uint64_t begin_ns = tl_now_ns();
    const uint32_t *word = &arena->control->published;
    arena->users++;
    tl_waits_begin(client);
    tl_lock_release(&client->lock);
    tierline_word_wait(word, at_least, WAIT_SLICE_NS);
    tl_lock_acquire(&client->lock);
    tl_waits_end(client);
    arena->users--;
    tl_event_announce(&client->changed);
    client->job.stats.stall_ns += tl_now_ns() - begin_ns;
    tl_look(client);
    int code = tl_ensure_connected(client);
    return code == 0 ? tl_heed_revocation(client) : code;
}

/* The layer is at the cursor or ahead of it: go with the stream. Its streamed extents are those of
 * [keeps, needs); those below `keeps` are given back first, or the ring would have no room. */
static int stream_layer(tierline_client *client, struct tl_arena *arena, uint32_t layer) {
    struct tl_gate gate = arena->gates[layer];
    uint64_t job = client->job.number;
    if (layer > arena->cursor) {
        arena->cursor = layer;
    }
    int code = give_back(arena, gate.keeps);
    while (code == 0 && gate.needs > gate.keeps && arena->opened < gate.needs) {
        if (arena->consumed >= gate.keeps && published(arena) >= gate.needs) {
            client->job.stats.streamed_extents += gate.needs - arena->opened;
            code = tl_arena_open(arena, arena->opened, gate.needs);
            arena->opened = gate.needs;
            continue;
        }
        uint32_t next = arena->consumed < gate.keeps ? arena->consumed + 1 : gate.needs;
        code = wait_for_more(client, arena, next);
        code = code == 0 ? tl_job_heed_yield(client) : code;
        if (code == 0 && (client->job.number != job || !streams(client, client->job.arena))) {
            code = tl_fail(TIERLINE_E_STATE, "layer %u: its job ended meanwhile", layer);
        }
        code = code == 0 ? give_back(arena, gate.keeps) : code;
    }
    return code;
}

/* The cursor has passed the layer, or no job streams its arena. */
static int fetch_layer(tierline_client *client, uint32_t index, uint32_t layer) {
    tierline_layer span = client->arenas[index].layers[layer];
    int code = 0;
    for (uint32_t e = span.first_extent; code == 0 && e <= span.last_extent; e++) {
        code = tl_fetch_private(client, index, e, false);
    }
    return code;
}

static int check_layer(tierline_client *client, uint32_t index, uint32_t layer) {
    if (client->device == TIERLINE_DEVICE_CUDA) {
        return tl_fail(TIERLINE_E_STATE, "layer %u of arena %u: on a GPU the gates are at launches",
                       layer, index);
    }
    if (index >= TIERLINE_MAX_ARENAS || client->arenas[index].state != TL_ARENA_SEALED) {
        return tl_fail(TIERLINE_E_STATE, "layer %u of arena %u: the arena is not sealed", layer,
                       index);
    }
    if (layer >= client->arenas[index].layer_count) {
        return tl_fail(TIERLINE_E_ARGUMENT, "layer %u of arena %u: there are %u layers", layer,
                       index, client->arenas[index].layer_count);
    }
    return 0;
}

/* Hears of a REVOKE soon, also in jobs whose gates never wait. */
static int look_sometimes(tierline_client *client) {
    uint64_t now_ns = tl_now_ns();
    if (now_ns - client->looked_ns >= LOOK_NS) {
        client->looked_ns = now_ns;
        tl_look(client);
    }
    return tl_heed_revocation(client);
}

int tierline_layer_begin(tierline_client *client, uint32_t index, uint32_t layer) {
    int code = tl_check_usable(client);
    if (code != 0) {
        return code;
    }
    tl_lock_acquire(&client->lock);
    code = check_layer(client, index, layer);
    code = code == 0 ? look_sometimes(client) : code;
    code = code == 0 ? tl_job_heed_yield(client) : code;
    if (code == 0) {
        struct tl_arena *arena = &client->arenas[index];
        if (streams(client, index) && layer >= arena->cursor) {
            code = stream_layer(client, arena, layer);
        } else {
            code = fetch_layer(client, index, layer);
        }
    }
    tl_lock_release(&client->lock);
    return code;
}

int tierline_layer_end(tierline_client *client, uint32_t index, uint32_t layer) {
    int code = tl_check_usable(client);
    if (code != 0) {
        return code;
    }
    tl_lock_acquire(&client->lock);
    code = check_layer(client, index, layer);
    if (code == 0 && streams(client, index)) {
        struct tl_arena *arena = &client->arenas[index];
        if (layer >= arena->cursor) {
            arena->cursor = layer + 1;
            code = give_back(arena, arena->gates[layer].releases);
        }
    }
    tl_lock_release(&client->lock);
    return code;
}
