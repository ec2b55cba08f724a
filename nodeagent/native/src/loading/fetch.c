/* Right bytes for an extent past the ring: from the lower tier, through staging, into private
 * memory that takes the extent's place.
 *
 * Invariant: the extent's addresses show either what they showed before or all of the right bytes:
 * the copy is complete before one system call puts it there. What is in a staging slot is taken out
 * under the lock, so that no reconnect can replace the staging memory under it.
 */
#include "loading/fetch.h"

#include "arena/host_memory.h"
#include "link/request.h"
#include "loading/staging.h"

#include <string.h>
#include <sys/mman.h>

#define MOST_TRIES 5

static bool has_right_bytes(const struct tl_arena *arena, uint32_t extent, bool writable) {
    enum tl_extent_state state = arena->states[extent];
    if (writable) {
        return state == TL_EXTENT_KEPT;
    }
    /* An open one may be closed at any time: that is too early for one that is held. */
    return state != TL_EXTENT_CLOSED && (state != TL_EXTENT_OPEN || arena->holds[extent] == 0);
}

int tl_copy_bytes(struct tl_arena *arena, uint32_t extent, const uint8_t *bytes, uint64_t length,
                  void *into) {
    (void)arena;
    (void)extent;
    memcpy(into, bytes, length);
    return 0;
}

int tl_fetch_bytes(tierline_client *client, uint32_t index, uint32_t extent, tl_bytes_taker *take,
                   void *into) {
    struct tl_arena *arena = &client->arenas[index];
    uint32_t slot = tl_take_staging_slot(client);
    struct tlp_message message = {.type = TLP_FETCH};
    message.fetch.arena = index;
    message.fetch.extent = extent;
    message.fetch.staging_slot = slot;
    struct tlp_message reply;
    /* The reply may belong to an earlier connection, whose staging memory is gone by now. */
    int code = TIERLINE_E_RETRY;
    for (int tries = 0; tries < MOST_TRIES && code == TIERLINE_E_RETRY; tries++) {
        code = tl_ensure_connected(client);
        uint32_t generation = client->generation;
        code = code == 0 ? tl_request(client, &message, TLP_FETCHED, &reply, TL_FAIL_ON_RECONNECT)
                         : code;
        if (code == 0 && (client->link != TL_LINK_UP || client->generation != generation)) {
            code = TIERLINE_E_RETRY;
        }
    }
    if (code == 0 && (reply.fetched.arena != index || reply.fetched.extent != extent ||
                      reply.fetched.length < arena->lengths[extent] ||
                      reply.fetched.length > arena->extent_bytes)) {
        code = tl_fail(TIERLINE_E_MALFORMED, "fetching extent %u: the agent sent %llu bytes of %u",
                       extent, (unsigned long long)reply.fetched.length, reply.fetched.extent);
    }
    if (code == 0) {
        const uint8_t *bytes = client->staging + (uint64_t)slot * arena->extent_bytes;
        code = take(arena, extent, bytes, reply.fetched.length, into);
    }
    tl_return_staging_slot(client, slot);
    return code;
}

static void report_written(tierline_client *client, uint32_t index, uint32_t extent) {
    struct tlp_message message = {.type = TLP_NOTICE};
    message.notice.kind = TLP_NOTICE_KIND_LEFT_MANAGEMENT;
    message.notice.size_bytes = tl_extent_length(&client->arenas[index], extent);
    memcpy(message.notice.text, "a sealed weight was written", 28);
    tl_send_one_way(client, &message);
    client->touched = 1; /* it is to move back (origins.h) */
}

int tl_fetch_private(tierline_client *client, uint32_t index, uint32_t extent, bool writable) {
    struct tl_arena *arena = &client->arenas[index];
    if (has_right_bytes(arena, extent, writable)) {
        return 0;
    }
    if (writable && arena->states[extent] == TL_EXTENT_PRIVATE) {
        if (mprotect(tl_extent_address(arena, extent), arena->extent_bytes,
                     PROT_READ | PROT_WRITE) != 0) {
            return tl_fail_errno(TIERLINE_E_SYSTEM, "making extent %u writable", extent);
        }
        arena->states[extent] = TL_EXTENT_KEPT;
        report_written(client, index, extent);
        return 0;
    }
    uint64_t size = arena->extent_bytes;
    uint64_t begin_ns = tl_now_ns();
    uint8_t *copy = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (copy == MAP_FAILED) {
        return tl_fail_errno(TIERLINE_E_NO_MEMORY, "fetching extent %u privately", extent);
    }
    arena->users++;
    int code = tl_fetch_bytes(client, index, extent, tl_copy_bytes, copy);
    arena->users--;
    /* Another thread may have fetched it, or a gate opened it, while this one waited. */
    bool wanted = code == 0 && !has_right_bytes(arena, extent, writable);
    code = wanted ? tl_host_replace(arena, extent, copy, writable) : code;
    if (!wanted || code != 0) {
        munmap(copy, size);
    }
    if (code == 0) {
        client->job.stats.stall_ns += tl_now_ns() - begin_ns;
        client->job.stats.fetched_bytes += tl_extent_length(arena, extent);
    }
    if (wanted && code == 0 && writable) {
        report_written(client, index, extent);
    }
    return code;
}
