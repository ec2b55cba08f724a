/* See arena.h. */
#include "arena/arena.h"

#include "tierline/protocol.h"
#include "wire/error.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

_Static_assert(offsetof(struct tl_control, consumed) == 64, "the protocol puts it at 64");

uint64_t tl_arena_bytes(const struct tl_arena *arena) {
    return (uint64_t)arena->extent_count * arena->extent_bytes;
}

uint8_t *tl_extent_address(const struct tl_arena *arena, uint32_t extent) {
    return arena->base + (uint64_t)extent * arena->extent_bytes;
}

uint64_t tl_extent_length(const struct tl_arena *arena, uint32_t extent) {
    uint64_t left = arena->weight_bytes - (uint64_t)extent * arena->extent_bytes;
    return left < arena->extent_bytes ? left : arena->extent_bytes;
}

static struct tl_descriptor *no_descriptors(size_t count) {
    struct tl_descriptor *descriptors = malloc(count * sizeof *descriptors);
    for (size_t i = 0; descriptors != NULL && i < count; i++) {
        descriptors[i] = TL_NO_DESCRIPTOR;
    }
    return descriptors;
}

int tl_arena_create(struct tl_arena *arena, const struct tl_memory *memory, uint64_t extent_bytes,
                    uint64_t weight_bytes, uint64_t pinned_bytes) {
    uint64_t count = (weight_bytes - 1) / extent_bytes + 1;
    if (count > TLP_MAX_ATTACH_ITEMS) {
        return tl_fail(TIERLINE_E_ARGUMENT,
                       "reserving an arena of %llu bytes: %llu extents are more than %u; "
                       "use larger extents",
                       (unsigned long long)weight_bytes, (unsigned long long)count,
                       TLP_MAX_ATTACH_ITEMS);
    }
    *arena = (struct tl_arena){.state = TL_ARENA_LOADING,
                               .memory = memory,
                               .extent_bytes = extent_bytes,
                               .weight_bytes = weight_bytes,
                               .pinned_bytes = pinned_bytes,
                               .extent_count = (uint32_t)count,
                               .control_descriptor = TL_NO_DESCRIPTOR};
    arena->placement = calloc(count, sizeof *arena->placement);
    arena->stream_index = calloc(count, sizeof *arena->stream_index);
    arena->stream_extent = calloc(count, sizeof *arena->stream_extent);
    arena->lengths = calloc(count, sizeof *arena->lengths);
    arena->digests = calloc(count, TL_DIGEST_BYTES);
    arena->states = calloc(count, sizeof *arena->states);
    arena->holds = calloc(count, sizeof *arena->holds);
    arena->resident = no_descriptors(count);
    arena->ring = no_descriptors(TL_MAX_RING_SLOTS);
    if (arena->placement == NULL || arena->stream_index == NULL || arena->stream_extent == NULL ||
        arena->lengths == NULL || arena->digests == NULL || arena->states == NULL ||
        arena->holds == NULL || arena->resident == NULL || arena->ring == NULL) {
        tl_arena_destroy(arena);
        return tl_fail(TIERLINE_E_NO_MEMORY, "reserving an arena: out of memory for its tables");
    }
    int code = memory->reserve(arena);
    if (code != 0) {
        tl_arena_destroy(arena);
        return code;
    }
    return 0;
}

static void close_descriptors(struct tl_descriptor *descriptors, size_t count) {
    for (size_t i = 0; descriptors != NULL && i < count; i++) {
        tl_descriptor_close(&descriptors[i]);
    }
}

static void close_all_descriptors(struct tl_arena *arena) {
    close_descriptors(arena->resident, arena->extent_count);
    close_descriptors(arena->ring, TL_MAX_RING_SLOTS);
    close_descriptors(&arena->control_descriptor, 1);
}

void tl_arena_destroy(struct tl_arena *arena) {
    if (arena->memory != NULL) {
        arena->memory->release(arena);
    }
    close_all_descriptors(arena);
    if (arena->control != NULL) {
        munmap(arena->control, TL_CONTROL_BYTES);
    }
    free(arena->placement);
    free(arena->stream_index);
    free(arena->stream_extent);
    free(arena->lengths);
    free(arena->digests);
    free(arena->states);
    free(arena->holds);
    free(arena->resident);
    free(arena->ring);
    free(arena->layers);
    free(arena->gates);
    *arena = (struct tl_arena){.state = TL_ARENA_NONE, .control_descriptor = TL_NO_DESCRIPTOR};
}

void tl_arena_abandon(struct tl_arena *arena) {
    close_all_descriptors(arena);
    if (arena->control != NULL) {
        munmap(arena->control, TL_CONTROL_BYTES);
        arena->control = NULL;
    }
    arena->memory->abandon(arena);
    arena->state = arena->state == TL_ARENA_SEALED ? TL_ARENA_INHERITED : TL_ARENA_LOST;
}

int tl_arena_place(struct tl_arena *arena) {
    uint64_t pinned_extents = (arena->pinned_bytes + arena->extent_bytes - 1) / arena->extent_bytes;
    uint32_t resident = 0;
    uint32_t streamed = 0;
    uint8_t *used = calloc(arena->extent_count, 1);
    if (used == NULL) {
        return tl_fail(TIERLINE_E_NO_MEMORY, "reserving an arena: out of memory");
    }
    const char *wrong = NULL;
    for (uint32_t e = 0; e < arena->extent_count && wrong == NULL; e++) {
        uint32_t place = arena->placement[e];
        if ((place & TLP_RESIDENT_BIT) != 0) {
            uint32_t index = place & ~TLP_RESIDENT_BIT;
            if (index >= arena->resident_count || used[index] != 0) {
                wrong = "a resident extent without memory of its own";
                break;
            }
            used[index] = 1;
            arena->stream_index[e] = TL_NOT_STREAMED;
            arena->states[e] = TL_EXTENT_RESIDENT;
            resident++;
        } else if (e < pinned_extents) {
            wrong = "a pinned extent that is not resident";
        } else if (arena->ring_slots == 0 || place != streamed % arena->ring_slots) {
            wrong = "a streamed extent in another slot than its turn";
        } else {
            arena->stream_index[e] = streamed;
            arena->stream_extent[streamed] = e;
            arena->states[e] = TL_EXTENT_CLOSED;
            streamed++;
        }
    }
    free(used);
    arena->streamed_count = streamed;
    if (wrong == NULL && resident != arena->resident_count) {
        wrong = "resident memory for which there is no extent";
    }
    if (wrong != NULL) {
        return tl_fail(TIERLINE_E_MALFORMED, "reserving an arena: the agent's placement has %s",
                       wrong);
    }
    return 0;
}

int tl_arena_accept(struct tl_arena *arena) {
    struct stat found;
    if (!tl_descriptor_is_ours(&arena->control_descriptor) ||
        fstat(arena->control_descriptor.number, &found) != 0 ||
        found.st_size < (off_t)TL_CONTROL_BYTES) {
        return tl_fail(TIERLINE_E_MALFORMED,
                       "reserving an arena: the agent's control page is too small");
    }
    void *control = mmap(NULL, TL_CONTROL_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED,
                         arena->control_descriptor.number, 0);
    if (control == MAP_FAILED) {
        return tl_fail_errno(TIERLINE_E_SYSTEM, "mapping an arena's control page");
    }
    arena->control = control;
    return arena->memory->accept(arena);
}

uint32_t tl_streamed_below(const struct tl_arena *arena, uint32_t extent) {
    uint32_t low = 0;
    uint32_t high = arena->streamed_count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (arena->stream_extent[middle] < extent) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

/* From the last layer to the first: what goes at a layer's end is what lies below the first extent
 * of every later layer; what goes at its begin (if layers were skipped) spares the layer itself. */
int tl_arena_set_layers(struct tl_arena *arena, const tierline_layer *layers, uint32_t count) {
    tierline_layer *kept = calloc((size_t)count + 1, sizeof *kept);
    struct tl_gate *gates = calloc((size_t)count + 1, sizeof *gates);
    if (kept == NULL || gates == NULL) {
        free(kept);
        free(gates);
        return tl_fail(TIERLINE_E_NO_MEMORY, "sealing an arena: out of memory for its layers");
    }
    int code = 0;
    uint32_t later = arena->streamed_count;
    for (uint32_t l = count; l-- > 0 && code == 0;) {
        tierline_layer layer = layers[l];
        kept[l] = layer;
        gates[l] = (struct tl_gate){.needs = 0, .keeps = later, .releases = later};
        if (layer.last_extent < layer.first_extent) {
            continue;
        }
        if (layer.last_extent >= arena->extent_count) {
            code = tl_fail(TIERLINE_E_ARGUMENT, "sealing an arena: layer %u reads extent %u of %u",
                           l, layer.last_extent, arena->extent_count);
            break;
        }
        uint32_t first = tl_streamed_below(arena, layer.first_extent);
        later = first < later ? first : later;
        gates[l].lowest = first;
        gates[l].needs = tl_streamed_below(arena, layer.last_extent + 1);
        gates[l].keeps = later;
        if (gates[l].needs > later && gates[l].needs - later > arena->ring_slots) {
            code = tl_fail(TIERLINE_E_ARGUMENT,
                           "sealing an arena: layer %u needs %u streamed extents at once, the ring "
                           "has %u; plan a larger ring",
                           l, gates[l].needs - later, arena->ring_slots);
        }
    }
    if (code != 0) {
        free(kept);
        free(gates);
        return code;
    }
    free(arena->layers);
    free(arena->gates);
    arena->layers = kept;
    arena->gates = gates;
    arena->layer_count = count;
    return 0;
}

/* Changes the streamed extents of [from, to) that are in state `before` to `after`, with one call
 * for each run of neighbours. */
static int protect(struct tl_arena *arena, uint32_t from, uint32_t to, enum tl_extent_state before,
                   enum tl_extent_state after) {
    uint32_t j = from;
    while (j < to) {
        uint32_t first = arena->stream_extent[j];
        if (arena->states[first] != before) {
            j++;
            continue;
        }
        uint32_t end = first;
        while (j < to && arena->stream_extent[j] == end && arena->states[end] == before) {
            end++;
            j++;
        }
        int code = arena->memory->protect(arena, first, end, after == TL_EXTENT_OPEN);
        if (code != 0) {
            return code;
        }
        memset(arena->states + first, (int)after, end - first);
    }
    return 0;
}

int tl_arena_open(struct tl_arena *arena, uint32_t from, uint32_t to) {
    return protect(arena, from, to, TL_EXTENT_CLOSED, TL_EXTENT_OPEN);
}

int tl_arena_close(struct tl_arena *arena, uint32_t from, uint32_t to) {
    return protect(arena, from, to, TL_EXTENT_OPEN, TL_EXTENT_CLOSED);
}

int tl_arena_reset(struct tl_arena *arena) {
    int code = tl_arena_close(arena, 0, arena->streamed_count);
    for (uint32_t j = 0; j < arena->streamed_count && code == 0; j++) {
        uint32_t extent = arena->stream_extent[j];
        if (arena->states[extent] == TL_EXTENT_PRIVATE && arena->holds[extent] == 0) {
            code = arena->memory->restore(arena, extent);
            if (code == 0) {
                arena->states[extent] = TL_EXTENT_CLOSED;
            }
        }
    }
    arena->cursor = 0;
    arena->opened = 0;
    arena->consumed = 0;
    return code;
}
