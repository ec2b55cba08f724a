/* See origins.h. What is known of origins is looked at under a lock of its own, with all signals
 * held back; nothing of an arena or an origin is read or waited for meanwhile.
 */
#include "loading/origins.h"

#include "loading/fetch.h"
#include "loading/forks.h"
#include "loading/kernel_mask.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define PAGE_BYTES 4096UL /* where pages are larger, mappings fail, and the weight moves back */

enum state {
    OPEN,    /* it was given back */
    CLOSED,  /* its whole pages, if it has any, cannot be read */
    READ,    /* touched: right bytes, which cannot be written */
    WRITTEN, /* touched, and may be written */
};

struct origin {
    uintptr_t address;
    uint64_t bytes;
    uint64_t offset; /* of the weight in its arena */
    uint64_t edges;  /* a hash of the bytes that share their pages with others */
    enum state state;
};

struct table {
    tierline_client *client; /* NULL: unused */
    uint32_t arena;
    uint32_t count;
    struct origin *origins;
};

#define MOST_TABLES 128U
static struct table tables[MOST_TABLES];
static struct tl_lock tables_lock;
_Atomic uintptr_t tl_origins_lowest = UINTPTR_MAX;
_Atomic uintptr_t tl_origins_highest;

static void enter(sigset_t *kept) {
    tl_kernel_mask_all(kept);
    tl_lock_acquire(&tables_lock);
}

static void leave(const sigset_t *kept) {
    tl_lock_release(&tables_lock);
    tl_kernel_mask(SIG_SETMASK, kept, NULL);
}

/* Where its whole pages begin and end; without any, both are its end. */
static uintptr_t first_page(const struct origin *origin) {
    uintptr_t end = origin->address + origin->bytes;
    uintptr_t first = (origin->address + PAGE_BYTES - 1) & ~(PAGE_BYTES - 1);
    return first < (end & ~(PAGE_BYTES - 1)) ? first : end;
}

static uintptr_t end_page(const struct origin *origin) {
    uintptr_t end = origin->address + origin->bytes;
    return first_page(origin) < end ? end & ~(PAGE_BYTES - 1) : end;
}

static void *at(uintptr_t address) {
    return (void *)address; /* NOLINT(performance-no-int-to-ptr): a place in the address space */
}

/* FNV-1a. */
static uint64_t hash(uint64_t begun, uintptr_t begin, uintptr_t end) {
    for (const uint8_t *byte = at(begin); begin < end; begin++, byte++) {
        begun = (begun ^ *byte) * UINT64_C(0x100000001b3);
    }
    return begun;
}

static uint64_t hash_edges(const struct origin *origin) {
    uint64_t head = hash(UINT64_C(0xcbf29ce484222325), origin->address, first_page(origin));
    return hash(head, end_page(origin), origin->address + origin->bytes);
}

/* New memory in the place of its whole pages. */
static bool replace_pages(const struct origin *origin, int protection) {
    uintptr_t first = first_page(origin);
    return first == end_page(origin) ||
           mmap(at(first), end_page(origin) - first, protection,
                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) != MAP_FAILED;
}

static bool protect_pages(const struct origin *origin, int protection) {
    uintptr_t first = first_page(origin);
    return first == end_page(origin) ||
           mprotect(at(first), end_page(origin) - first, protection) == 0;
}

/* With the lock. The lowest origin in whose whole pages a byte of [begin, end) lies. */
static struct origin *find(uintptr_t begin, uintptr_t end, struct table **found) {
    struct origin *lowest_one = NULL;
    for (size_t i = 0; i < MOST_TABLES; i++) {
        for (uint32_t o = 0; tables[i].client != NULL && o < tables[i].count; o++) {
            struct origin *origin = &tables[i].origins[o];
            uintptr_t first = first_page(origin);
            uintptr_t last = end_page(origin);
            if (origin->state != OPEN && first < last && begin < last && end > first &&
                (lowest_one == NULL || origin->address < lowest_one->address)) {
                *found = &tables[i];
                lowest_one = origin;
            }
        }
    }
    return lowest_one;
}

/* With the lock. The one that was copied from there, if it is there. */
static struct origin *find_again(const tierline_client *client, uint32_t arena,
                                 const struct origin *seen) {
    for (size_t i = 0; i < MOST_TABLES; i++) {
        for (uint32_t o = 0;
             tables[i].client == client && tables[i].arena == arena && o < tables[i].count; o++) {
            if (tables[i].origins[o].address == seen->address) {
                return &tables[i].origins[o];
            }
        }
    }
    return NULL;
}

static bool is_read_by_a_job(tierline_client *client, uint32_t arena) {
    tl_lock_acquire(&client->lock);
    bool read = client->job.active && client->job.arena == arena;
    tl_lock_release(&client->lock);
    return read;
}

/* Right bytes of one extent, which stay until `let_go`. */
static int hold(tierline_client *client, uint32_t index, uint32_t extent) {
    if (client->dropped) {
        return tl_forks_read(client, index, extent, false);
    }
    struct tl_arena *arena = &client->arenas[index];
    tl_lock_acquire(&client->lock);
    int code = tl_fail(TIERLINE_E_STATE, "arena %u is not sealed", index);
    if (arena->state == TL_ARENA_SEALED) {
        arena->holds[extent]++;
        arena->users++; /* fetching releases the lock */
        code = tl_fetch_private(client, index, extent, false);
        arena->users--;
        arena->holds[extent] -= code != 0;
    }
    tl_lock_release(&client->lock);
    return code;
}

static void let_go(tierline_client *client, uint32_t index, uint32_t extent) {
    struct tl_arena *arena = &client->arenas[index];
    if (!client->dropped) {
        tl_lock_acquire(&client->lock);
        arena->holds[extent] -= arena->holds[extent] > 0;
        tl_lock_release(&client->lock);
    }
}

/* The part of a weight, from byte `done` of it on, that lies in one extent. */
struct part {
    uint32_t extent;
    uint64_t offset; /* in the arena */
    uint64_t length;
};

static struct part part_at(const struct tl_arena *arena, const struct origin *origin,
                           uint64_t done) {
    uint64_t offset = origin->offset + done;
    uint32_t extent = (uint32_t)(offset / arena->extent_bytes);
    uint64_t room = (extent + 1) * arena->extent_bytes - offset;
    uint64_t left = origin->bytes - done;
    return (struct part){extent, offset, room < left ? room : left};
}

static int copy_weight(tierline_client *client, uint32_t index, const struct origin *origin,
                       uint8_t *into) {
    const struct tl_arena *arena = &client->arenas[index];
    int code = 0;
    for (uint64_t done = 0; done < origin->bytes && code == 0;) {
        struct part part = part_at(arena, origin, done);
        code = hold(client, index, part.extent);
        if (code == 0) {
            memcpy(into + done, arena->base + part.offset, part.length);
            let_go(client, index, part.extent);
        }
        done += part.length;
    }
    return code;
}

/* With the lock. `copy` lies on its page as the origin does on its own. What code has written to
 * the bytes that share their pages with others stays. */
static bool show(struct origin *origin, uint8_t *copy, bool writing) {
    uintptr_t first = first_page(origin);
    uintptr_t end = end_page(origin);
    uint64_t head = first - origin->address;
    if (first < end) {
        uint8_t *pages = copy + head;
        if ((!writing && mprotect(pages, end - first, PROT_READ) != 0) ||
            mremap(pages, end - first, end - first, MREMAP_MAYMOVE | MREMAP_FIXED, at(first)) ==
                MAP_FAILED) {
            return false;
        }
    }
    if (hash_edges(origin) == origin->edges) {
        memcpy(at(origin->address), copy, head);
        memcpy(at(end), copy + (end - origin->address), origin->address + origin->bytes - end);
    }
    origin->state = writing ? WRITTEN : READ;
    return true;
}

/* Of an origin that was closed a moment ago. */
static int open_closed(tierline_client *client, uint32_t arena, const struct origin *seen,
                       bool writing) {
    uint64_t phase = seen->address & (PAGE_BYTES - 1);
    uint64_t size = (phase + seen->bytes + PAGE_BYTES - 1) & ~(PAGE_BYTES - 1);
    uint8_t *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        return tl_fail_errno(TIERLINE_E_NO_MEMORY,
                             "a weight's bytes for code that keeps its address");
    }
    int code = copy_weight(client, arena, seen, memory + phase);
    sigset_t kept;
    enter(&kept);
    struct origin *origin = code == 0 ? find_again(client, arena, seen) : NULL;
    /* Another thread may have touched it meanwhile. */
    bool wanted = origin != NULL && origin->state == CLOSED;
    bool shown = wanted && show(origin, memory + phase, writing);
    if (shown) {
        client->touched = 1;
    } else if (wanted) {
        code = tl_fail_errno(TIERLINE_E_SYSTEM, "a weight's bytes where they were before");
    }
    leave(&kept);
    /* What moved away may be another mapping's by now. */
    bool moved = shown && first_page(seen) < end_page(seen);
    uint64_t before = moved ? first_page(seen) - seen->address + phase : size;
    uint64_t end = moved ? before + end_page(seen) - first_page(seen) : size;
    if (before > 0) {
        munmap(memory, before);
    }
    if (end < size) {
        munmap(memory + end, size - end);
    }
    return code;
}

static int make_writable(const struct table *owner, const struct origin *seen) {
    sigset_t kept;
    enter(&kept);
    struct origin *origin = find_again(owner->client, owner->arena, seen);
    bool failed = false;
    if (origin != NULL && origin->state == READ) {
        failed = !protect_pages(origin, PROT_READ | PROT_WRITE);
        origin->state = failed ? READ : WRITTEN;
    }
    leave(&kept);
    return failed ? tl_fail_errno(TIERLINE_E_SYSTEM, "making a weight writable") : 0;
}

/* Of an origin that needed it a moment ago. */
static int open_origin(const struct table *owner, const struct origin *seen, bool writing) {
    tierline_client *client = owner->client;
    if (writing && (client->dropped || is_read_by_a_job(client, owner->arena))) {
        return tl_fail(TIERLINE_E_STATE, "code that keeps its address writes it, %s",
                       client->dropped ? "in a forked child" : "in the middle of a job");
    }
    return seen->state == CLOSED ? open_closed(client, owner->arena, seen, writing)
                                 : make_writable(owner, seen);
}

/* Opens the lowest origin in whose whole pages a byte of [begin, end) lies, if it needs that: 0 or
 * a code. Returns the end of these pages; 0: there is none. */
static uintptr_t open_first(uintptr_t begin, uintptr_t end, bool writing, int *code) {
    *code = 0;
    if (!tl_origins_may_hold(begin, end)) {
        return 0;
    }
    sigset_t kept;
    enter(&kept);
    struct table *table = NULL;
    const struct origin *origin = find(begin, end, &table);
    struct table owner = origin != NULL ? *table : (struct table){0};
    struct origin seen = origin != NULL ? *origin : (struct origin){0};
    leave(&kept);
    if (origin == NULL) {
        return 0;
    }
    if (seen.state == CLOSED || (seen.state == READ && writing)) {
        *code = open_origin(&owner, &seen, writing);
    }
    return end_page(&seen);
}

bool tl_origins_touch(uintptr_t address, bool writing, int *code) {
    return open_first(address, address + 1, writing, code) != 0;
}

int tl_origins_touch_all(uintptr_t begin, uintptr_t end, bool writing) {
    int code = 0;
    while (code == 0 && begin < end) {
        uintptr_t past = open_first(begin, end, writing, &code);
        begin = past != 0 ? past : end;
    }
    return code;
}

void tl_origins_in_child(void) {
    tables_lock.word = 0;
}

void tl_origins_forget(const tierline_client *client, uint32_t arena) {
    sigset_t kept;
    enter(&kept);
    for (size_t i = 0; i < MOST_TABLES; i++) {
        struct table *table = &tables[i];
        if (table->client != client || table->arena != arena) {
            continue;
        }
        for (uint32_t o = 0; o < table->count; o++) {
            const struct origin *origin = &table->origins[o];
            if (origin->state == CLOSED) {
                replace_pages(origin, PROT_READ | PROT_WRITE);
            } else if (origin->state == READ) {
                protect_pages(origin, PROT_READ | PROT_WRITE);
            }
        }
        free(table->origins);
        *table = (struct table){0};
    }
    leave(&kept);
}

static void widen_bounds(const struct origin *origin) {
    uintptr_t end = origin->address + origin->bytes;
    if (origin->address < tl_origins_lowest) {
        tl_origins_lowest = origin->address;
    }
    if (end > tl_origins_highest) {
        tl_origins_highest = end;
    }
}

/* With the lock. An unused one, or NULL. */
static struct table *unused_table(void) {
    for (size_t i = 0; i < MOST_TABLES; i++) {
        if (tables[i].client == NULL) {
            return &tables[i];
        }
    }
    return NULL;
}

int tierline_origins(tierline_client *client, uint32_t arena, const tierline_origin *origins,
                     uint32_t count, uint32_t *closed) {
    *closed = 0;
    int code = tl_check_usable(client);
    if (code != 0) {
        return code;
    }
    if (arena >= TIERLINE_MAX_ARENAS || client->terms.device_uuid[0] != '\0') {
        return tl_fail(TIERLINE_E_ARGUMENT, "origins of arena %u: it is none on the CPU", arena);
    }
    struct origin *made = calloc(count > 0 ? count : 1, sizeof *made);
    if (made == NULL) {
        return tl_fail(TIERLINE_E_NO_MEMORY, "origins of %u weights", count);
    }
    sigset_t kept;
    enter(&kept);
    struct table *table = unused_table();
    if (table != NULL) {
        *table = (struct table){.client = client, .arena = arena, .origins = made};
        for (bool all = true; all && table->count < count; *closed = table->count) {
            const tierline_origin *given = &origins[table->count];
            struct origin one = {.address = (uintptr_t)given->address,
                                 .bytes = given->bytes,
                                 .offset = given->offset};
            one.state = CLOSED;
            one.edges = hash_edges(&one);
            widen_bounds(&one);
            all = replace_pages(&one, PROT_NONE);
            if (all) {
                made[table->count++] = one;
            }
        }
    }
    leave(&kept);
    if (table == NULL) {
        free(made);
        return tl_fail(TIERLINE_E_NO_MEMORY, "more than %u arenas in one process", MOST_TABLES);
    }
    return 0;
}

const uint32_t *tierline_touched(const tierline_client *client) {
    return &client->touched;
}

static bool is_written(tierline_client *client, uint32_t index, uint32_t extent) {
    const struct tl_arena *arena = &client->arenas[index];
    tl_lock_acquire(&client->lock);
    bool written = arena->state == TL_ARENA_SEALED && arena->states[extent] == TL_EXTENT_KEPT;
    tl_lock_release(&client->lock);
    return written;
}

/* Whether a part of a weight was written in the arena; `copies`: the origin gets what was. */
static bool each_written(tierline_client *client, uint32_t index, const struct origin *origin,
                         bool copies) {
    const struct tl_arena *arena = &client->arenas[index];
    bool any = false;
    for (uint64_t done = 0; done < origin->bytes;) {
        struct part part = part_at(arena, origin, done);
        if (is_written(client, index, part.extent)) {
            any = true;
            if (copies) { /* a written extent stays readable */
                memcpy(at(origin->address + done), arena->base + part.offset, part.length);
            }
        }
        done += part.length;
    }
    return any;
}

/* The next one of a client's that is not open, from place `from` on; false: there is none. */
static bool next_kept(const tierline_client *client, uint64_t from, uint64_t *place,
                      struct origin *found, uint32_t *arena, uint32_t *index) {
    sigset_t kept;
    enter(&kept);
    bool any = false;
    for (uint64_t i = from >> 32; i < MOST_TABLES && !any; i++) {
        uint32_t first = i == from >> 32 ? (uint32_t)from : 0;
        for (uint32_t o = first; tables[i].client == client && o < tables[i].count && !any; o++) {
            if (tables[i].origins[o].state != OPEN) {
                *place = i << 32 | o;
                *found = tables[i].origins[o];
                *arena = tables[i].arena;
                *index = o;
                any = true;
            }
        }
    }
    leave(&kept);
    return any;
}

static int give_back(tierline_client *client, uint32_t arena, const struct origin *seen) {
    int code = seen->state == CLOSED ? open_closed(client, arena, seen, true) : 0;
    if (code != 0) {
        return code;
    }
    sigset_t kept;
    enter(&kept);
    struct origin *origin = find_again(client, arena, seen);
    bool failed = origin != NULL && !protect_pages(origin, PROT_READ | PROT_WRITE);
    if (origin != NULL && !failed) {
        origin->state = OPEN;
    }
    leave(&kept);
    if (failed) {
        return tl_fail_errno(TIERLINE_E_SYSTEM, "making a weight writable");
    }
    if (seen->state == READ) {
        each_written(client, arena, seen, true);
    }
    return 0;
}

int tierline_give_back(tierline_client *client, uint64_t *cursor, uint32_t *arena, uint32_t *index,
                       uint32_t *touched) {
    int code = tl_check_usable(client);
    if (code != 0) {
        return code;
    }
    if (*cursor == 0) { /* before it is looked: what is touched from now on is looked for again */
        client->touched = 0;
    }
    struct origin seen;
    for (uint64_t place = 0; next_kept(client, *cursor, &place, &seen, arena, index);) {
        *cursor = place + 1;
        if (seen.state != CLOSED || each_written(client, *arena, &seen, false)) {
            *touched = seen.state != CLOSED;
            return give_back(client, *arena, &seen);
        }
    }
    return tl_fail(TIERLINE_E_STATE, "giving an origin back: there is none left");
}
