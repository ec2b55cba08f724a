/* See holds.h.
 *
 * Invariant: a hold is counted before its extent is fetched and until the transfer is over, so no
 * reset takes the private copy away between the two. A thread that is cancelled in a transfer
 * leaves its holds: the copies stay, as written ones do.
 */
#include "loading/holds.h"

#include "arena/addresses.h"
#include "link/state.h"
#include "loading/faults.h"
#include "loading/fetch.h"
#include "loading/forks.h"
#include "loading/origins.h"

#include <errno.h>

struct span {
    uint32_t first, last; /* extents */
};

static struct span span_of(const struct tl_arena *arena, uintptr_t begin, uintptr_t end) {
    uintptr_t base = (uintptr_t)arena->base;
    uint64_t from = begin > base ? begin - base : 0;
    uint64_t upto = end - base < tl_arena_bytes(arena) ? end - base : tl_arena_bytes(arena);
    return (struct span){(uint32_t)(from / arena->extent_bytes),
                         (uint32_t)((upto - 1) / arena->extent_bytes)};
}

/* Both with the lock held, of an arena that is sealed. */
static int take(tierline_client *client, uint32_t index, struct span span, bool writing) {
    struct tl_arena *arena = &client->arenas[index];
    int code = 0;
    for (uint32_t e = span.first; e <= span.last; e++) {
        arena->holds[e]++;
    }
    arena->users++; /* fetching releases the lock */
    for (uint32_t e = span.first; e <= span.last && code == 0; e++) {
        code = tl_fetch_private(client, index, e, writing);
    }
    arena->users--;
    return code;
}

/* In a forked child, where nothing is taken away. Without the lock. */
static int read_all(tierline_client *client, uint32_t index, struct span span, bool writing) {
    int code = 0;
    for (uint32_t e = span.first; e <= span.last && code == 0; e++) {
        code = tl_forks_read(client, index, e, writing);
    }
    return code;
}

static void release(struct tl_arena *arena, struct span span) {
    for (uint32_t e = span.first; e <= span.last; e++) {
        arena->holds[e] -= arena->holds[e] > 0;
    }
}

enum what { TAKE_TO_READ, TAKE_TO_WRITE, RELEASE };

/* Does it to the weights in a buffer. Returns whether there are any. */
static bool each_range(const struct iovec *part, enum what what) {
    uintptr_t begin = (uintptr_t)part->iov_base;
    uintptr_t end = begin + part->iov_len;
    const struct tl_addresses *range = tl_addresses_within(begin, end);
    bool any = range != NULL;
    for (; range != NULL; range = tl_addresses_within(begin, end)) {
        tierline_client *client = range->client;
        struct tl_arena *arena = &client->arenas[range->arena];
        int code =
            what != RELEASE && client->dropped
                ? read_all(client, range->arena, span_of(arena, begin, end), what == TAKE_TO_WRITE)
                : 0;
        tl_lock_acquire(&client->lock);
        if (arena->state == TL_ARENA_SEALED) {
            struct span span = span_of(arena, begin, end);
            if (what == RELEASE) {
                release(arena, span);
            } else {
                code = take(client, range->arena, span, what == TAKE_TO_WRITE);
            }
        }
        tl_lock_release(&client->lock);
        if (code != 0) {
            tl_faults_say(tierline_last_error());
        }
        begin = range->end > begin ? range->end : end;
    }
    return any;
}

static bool each_part(const struct iovec *parts, size_t count, enum what what) {
    int kept = errno;
    bool any = false;
    for (size_t i = 0; i < count; i++) {
        uintptr_t begin = (uintptr_t)parts[i].iov_base;
        if (what != RELEASE &&
            tl_origins_touch_all(begin, begin + parts[i].iov_len, what == TAKE_TO_WRITE) != 0) {
            tl_faults_say(tierline_last_error());
        }
        if (tl_addresses_may_hold(parts[i].iov_base, parts[i].iov_len)) {
            any = each_range(&parts[i], what) || any;
        }
    }
    errno = kept;
    return any;
}

bool tl_holds_take(const struct iovec *parts, size_t count, bool writing) {
    return each_part(parts, count, writing ? TAKE_TO_WRITE : TAKE_TO_READ);
}

void tl_holds_release(const struct iovec *parts, size_t count) {
    each_part(parts, count, RELEASE);
}
