/* The memory of an arena on the CPU: memfds mapped into a range of this process's addresses, and
 * protected so that only extents with right bytes can be read. See arena.h.
 */
#include "arena/host_memory.h"

#include "arena/arena.h"
#include "wire/error.h"

#include <fcntl.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>

#define HUGE_PAGE_BYTES (2UL << 20)

/* Reserves addresses on a huge-page boundary, so that large extents can use huge pages. */
static uint8_t *reserve_addresses(uint64_t size) {
    uint64_t slack = HUGE_PAGE_BYTES;
    uint8_t *raw =
        mmap(NULL, size + slack, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (raw == MAP_FAILED) {
        return NULL;
    }
    uint64_t before = (slack - ((uintptr_t)raw & (slack - 1))) & (slack - 1);
    if (before > 0) {
        munmap(raw, before);
    }
    munmap(raw + before + size, slack - before);
    return raw + before;
}

static int reserve(struct tl_arena *arena) {
    arena->base = reserve_addresses(tl_arena_bytes(arena));
    if (arena->base == NULL) {
        return tl_fail_errno(TIERLINE_E_NO_MEMORY, "reserving %llu bytes of addresses",
                             (unsigned long long)tl_arena_bytes(arena));
    }
    return 0;
}

static uint64_t slots_bytes(const struct tl_arena *arena) {
    return (uint64_t)arena->ring_slots * arena->extent_bytes;
}

static void unmap_slots(struct tl_arena *arena) {
    if (arena->slots != NULL) {
        munmap(arena->slots, slots_bytes(arena));
        arena->slots = NULL;
    }
}

static void unmap_legacy(struct tl_arena *arena) {
    void *legacy = arena->legacy;
    arena->legacy = NULL; /* before the addresses may be another mapping's: a child may be forked */
    if (legacy != NULL) {
        munmap(legacy, arena->legacy_bytes);
    }
}

static void release(struct tl_arena *arena) {
    tl_spares_drop(arena->spares);
    arena->spares = NULL;
    unmap_slots(arena);
    unmap_legacy(arena);
    void *base = arena->base;
    arena->base = NULL; /* before the addresses may be another mapping's: a child may be forked */
    if (base != NULL) {
        munmap(base, tl_arena_bytes(arena));
    }
}

static void abandon(struct tl_arena *arena) {
    tl_spares_forget(arena->spares);
    arena->spares = NULL;
    unmap_slots(arena);
    for (uint32_t e = 0; arena->base != NULL && e < arena->extent_count; e++) {
        uint32_t first = e;
        while (e < arena->extent_count && !tl_extent_is_private(arena, e)) {
            arena->states[e++] = TL_EXTENT_CLOSED;
        }
        if (e > first) {
            /* Unmapping would let other mappings take these addresses, and stale pointers into the
             * weights would read them. */
            (void)mmap(tl_extent_address(arena, first), (e - first) * arena->extent_bytes,
                       PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
        }
    }
}

/* Extents are sealed against shrinking, so that reading one can never raise SIGBUS. */
static int check_extent_descriptor(const struct tl_descriptor *descriptor, uint64_t extent_bytes) {
    if (!tl_descriptor_is_ours(descriptor)) {
        return tl_fail(TIERLINE_E_SYSTEM, "reserving an arena: " TL_CLOSED_BY_PROGRAM);
    }
    struct stat found;
    if (fstat(descriptor->number, &found) != 0 || (uint64_t)found.st_size < extent_bytes) {
        return tl_fail(TIERLINE_E_MALFORMED,
                       "reserving an arena: a descriptor of the agent holds less than an extent");
    }
    int seals = fcntl(descriptor->number, F_GET_SEALS);
    if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
        return tl_fail(TIERLINE_E_MALFORMED,
                       "reserving an arena: a descriptor of the agent is not sealed against "
                       "shrinking");
    }
    return 0;
}

static int accept_descriptors(struct tl_arena *arena) {
    int code = 0;
    for (uint32_t i = 0; i < arena->resident_count && code == 0; i++) {
        code = check_extent_descriptor(&arena->resident[i], arena->extent_bytes);
    }
    for (uint32_t i = 0; i < arena->ring_slots && code == 0; i++) {
        code = check_extent_descriptor(&arena->ring[i], arena->extent_bytes);
    }
    return code;
}

static int map_extent(uint8_t *at, uint64_t extent_bytes, int protection,
                      const struct tl_descriptor *descriptor) {
    if (!tl_descriptor_is_ours(descriptor)) {
        return tl_fail(TIERLINE_E_SYSTEM, "mapping an extent: " TL_CLOSED_BY_PROGRAM);
    }
    int populated = protection == PROT_NONE ? 0 : MAP_POPULATE;
    void *mapped = mmap(at, extent_bytes, protection, MAP_SHARED | MAP_FIXED | populated,
                        descriptor->number, 0);
    return mapped == MAP_FAILED ? tl_fail_errno(TIERLINE_E_SYSTEM, "mapping an extent") : 0;
}

/* ThreadSanitizer takes mmap(MAP_FIXED) for a write to the whole range. A thread that reads weights
 * outside every gate while a job begins sees its private copy or faults, both of which are right
 * (arena.h): the kernel replaces the mapping at once. A suppression by name would not do: it needs
 * the stack of that "write", which the sanitizer forgets. */
#ifdef __SANITIZE_THREAD__
void AnnotateIgnoreWritesBegin(const char *file, int line);
void AnnotateIgnoreWritesEnd(const char *file, int line);
#define REPLACES_A_MAPPING_BEGIN() AnnotateIgnoreWritesBegin(__FILE__, __LINE__)
#define REPLACES_A_MAPPING_END() AnnotateIgnoreWritesEnd(__FILE__, __LINE__)
#else
#define REPLACES_A_MAPPING_BEGIN() ((void)0)
#define REPLACES_A_MAPPING_END() ((void)0)
#endif

/* The ring once more, so that a slot can be mapped again without its descriptor, which the program
 * may have closed. */
static int map_slots(struct tl_arena *arena) {
    if (arena->ring_slots == 0) {
        return 0;
    }
    void *slots = mmap(NULL, slots_bytes(arena), PROT_NONE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (slots == MAP_FAILED) {
        return tl_fail_errno(TIERLINE_E_NO_MEMORY, "reserving addresses of ring slots");
    }
    arena->slots = slots;
    for (uint32_t s = 0; s < arena->ring_slots; s++) {
        int code = map_extent(arena->slots + s * arena->extent_bytes, arena->extent_bytes,
                              PROT_NONE, &arena->ring[s]);
        if (code != 0) {
            return code;
        }
    }
    return 0;
}

static int map_ring_slot(struct tl_arena *arena, uint32_t extent) {
    uint64_t slot = arena->stream_index[extent] % arena->ring_slots;
    REPLACES_A_MAPPING_BEGIN();
    /* Of a shared mapping a size of 0 makes another one. */
    void *mapped = mremap(arena->slots + slot * arena->extent_bytes, 0, arena->extent_bytes,
                          MREMAP_MAYMOVE | MREMAP_FIXED, tl_extent_address(arena, extent));
    REPLACES_A_MAPPING_END();
    return mapped == MAP_FAILED ? tl_fail_errno(TIERLINE_E_SYSTEM, "mapping a ring slot") : 0;
}

/* All that can be offered to an agent; malloced, NULL without memory. */
static struct tl_descriptor **descriptors_of(struct tl_arena *arena, size_t *count) {
    *count = (size_t)arena->resident_count + arena->ring_slots + 1;
    struct tl_descriptor **all = malloc(*count * sizeof(struct tl_descriptor *));
    if (all == NULL) {
        return NULL;
    }
    size_t at = 0;
    for (uint32_t i = 0; i < arena->resident_count; i++) {
        all[at++] = &arena->resident[i];
    }
    for (uint32_t i = 0; i < arena->ring_slots; i++) {
        all[at++] = &arena->ring[i];
    }
    all[at] = &arena->control_descriptor;
    return all;
}

static void keep_spares(struct tl_arena *arena) {
    size_t count;
    struct tl_descriptor **all = descriptors_of(arena, &count);
    arena->spares = all != NULL ? tl_spares_keep(all, count) : NULL;
    free((void *)all);
}

static void recover(struct tl_arena *arena) {
    size_t count;
    struct tl_descriptor **all = descriptors_of(arena, &count);
    if (all != NULL) {
        (void)tl_spares_restore(arena->spares, all, count);
    }
    free((void *)all);
}

static int map_all(struct tl_arena *arena) {
    int code = map_slots(arena);
    for (uint32_t e = 0; e < arena->extent_count && code == 0; e++) {
        uint32_t index = arena->placement[e] & ~TL_RESIDENT_BIT;
        code = arena->stream_index[e] != TL_NOT_STREAMED
                   ? map_ring_slot(arena, e)
                   : map_extent(tl_extent_address(arena, e), arena->extent_bytes, PROT_READ,
                                &arena->resident[index]);
    }
    if (code == 0) {
        keep_spares(arena);
    }
    return code;
}

static int protect(struct tl_arena *arena, uint32_t first, uint32_t end, bool readable) {
    uint64_t size = (uint64_t)(end - first) * arena->extent_bytes;
    if (mprotect(tl_extent_address(arena, first), size, readable ? PROT_READ : PROT_NONE) != 0) {
        return tl_fail_errno(TIERLINE_E_SYSTEM, "changing the protection of extents %u to %u",
                             first, end - 1);
    }
    return 0;
}

const struct tl_memory tl_host_memory = {
    .reserve = reserve,
    .release = release,
    .abandon = abandon,
    .accept = accept_descriptors,
    .map = map_all,
    .protect = protect,
    .restore = map_ring_slot,
    .recover = recover,
};

int tl_host_replace(struct tl_arena *arena, uint32_t extent, uint8_t *copy, bool writable) {
    int protection = writable ? PROT_READ | PROT_WRITE : PROT_READ;
    if (mprotect(copy, arena->extent_bytes, protection) != 0 ||
        mremap(copy, arena->extent_bytes, arena->extent_bytes, MREMAP_MAYMOVE | MREMAP_FIXED,
               tl_extent_address(arena, extent)) == MAP_FAILED) {
        return tl_fail_errno(TIERLINE_E_SYSTEM, "putting a private copy in the place of extent %u",
                             extent);
    }
    arena->states[extent] = writable ? TL_EXTENT_KEPT : TL_EXTENT_PRIVATE;
    return 0;
}
