/* The arena without an agent: what gates ask for, what placements are believed,
 * what pages allow. */
#include "arena/host_memory.h"
#include "expect.h"
#include "tierline/protocol.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define EXTENT 65536U

static void build(struct tl_arena *arena, uint32_t extents, const uint32_t *placement,
                  uint32_t residents, uint32_t ring) {
    EXPECT(tl_arena_create(arena, &tl_host_memory, EXTENT, (uint64_t)extents * EXTENT, 0) == 0);
    memcpy(arena->placement, placement, extents * sizeof *placement);
    arena->resident_count = residents;
    arena->ring_slots = ring;
}

/* Extents 0 and 3 resident, the others streamed through two slots. */
static const uint32_t mixed[6] = {TLP_RESIDENT_BIT, 0, 1, TLP_RESIDENT_BIT | 1, 0, 1};

static void expect_gates(const struct tl_arena *arena, const struct tl_gate *want, uint32_t count) {
    for (uint32_t l = 0; l < count; l++) {
        const struct tl_gate *is = &arena->gates[l];
        EXPECT(is->needs == want[l].needs && is->keeps == want[l].keeps);
        EXPECT(is->releases == want[l].releases && is->lowest == want[l].lowest);
    }
}

static void gates_ask_for_what_layers_read(void) {
    struct tl_arena arena;
    build(&arena, 6, mixed, 2, 2);
    EXPECT(tl_arena_place(&arena) == 0);
    EXPECT(arena.streamed_count == 4);
    const uint32_t streamed[4] = {1, 2, 4, 5};
    EXPECT(memcmp(arena.stream_extent, streamed, sizeof streamed) == 0);
    /* 0-1, none, 1-2 (shares 1), 3, 3-4, 5 */
    const tierline_layer layers[6] = {{0, 1}, {1, 0}, {1, 2}, {3, 3}, {3, 4}, {5, 5}};
    EXPECT(tl_arena_set_layers(&arena, layers, 6) == 0);
    const struct tl_gate want[6] = {
        /* layer 2 reads extent 1 again */
        {.needs = 1, .keeps = 0, .releases = 0, .lowest = 0},
        {.needs = 0, .keeps = 0, .releases = 0, .lowest = 0},
        {.needs = 2, .keeps = 0, .releases = 2, .lowest = 0},
        {.needs = 2, .keeps = 2, .releases = 2, .lowest = 2},
        {.needs = 3, .keeps = 2, .releases = 3, .lowest = 2},
        {.needs = 4, .keeps = 3, .releases = 4, .lowest = 3},
    };
    expect_gates(&arena, want, 6);
    tl_arena_destroy(&arena);
}

static void what_a_later_layer_reads_again_is_kept(void) {
    struct tl_arena arena;
    build(&arena, 6, mixed, 2, 4);
    const uint32_t wide[6] = {TLP_RESIDENT_BIT, 0, 1, TLP_RESIDENT_BIT | 1, 2, 3};
    memcpy(arena.placement, wide, sizeof wide);
    EXPECT(tl_arena_place(&arena) == 0);
    const tierline_layer layers[3] = {{1, 2}, {4, 5}, {1, 1}};
    EXPECT(tl_arena_set_layers(&arena, layers, 3) == 0);
    EXPECT(arena.gates[0].releases == 0 && arena.gates[1].keeps == 0);
    EXPECT(arena.gates[1].needs == 4 && arena.gates[1].releases == 0);
    EXPECT(arena.gates[2].needs == 1 && arena.gates[2].releases == 4);
    tl_arena_destroy(&arena);
}

static void a_layer_wider_than_the_ring_is_refused(void) {
    struct tl_arena arena;
    build(&arena, 6, mixed, 2, 2);
    EXPECT(tl_arena_place(&arena) == 0);
    const tierline_layer wide = {0, 4};
    EXPECT(tl_arena_set_layers(&arena, &wide, 1) == TIERLINE_E_ARGUMENT);
    EXPECT(strstr(tierline_last_error(), "plan a larger ring") != NULL);
    const tierline_layer outside = {0, 6};
    EXPECT(tl_arena_set_layers(&arena, &outside, 1) == TIERLINE_E_ARGUMENT);
    tl_arena_destroy(&arena);
}

static void check_placement(const char *name, const uint32_t *placement, uint32_t residents,
                            uint32_t ring, uint64_t pinned_bytes) {
    struct tl_arena arena;
    build(&arena, 6, placement, residents, ring);
    arena.pinned_bytes = pinned_bytes;
    if (tl_arena_place(&arena) != TIERLINE_E_MALFORMED) {
        fprintf(stderr, "%s: the placement was believed\n", name);
        exit(1);
    }
    tl_arena_destroy(&arena);
}

static void placements_that_make_no_sense_are_not_believed(void) {
    const uint32_t beyond[6] = {TLP_RESIDENT_BIT, 0, 1, TLP_RESIDENT_BIT | 2, 0, 1};
    const uint32_t twice[6] = {TLP_RESIDENT_BIT, 0, 1, TLP_RESIDENT_BIT, 0, 1};
    const uint32_t turn[6] = {TLP_RESIDENT_BIT, 0, 1, TLP_RESIDENT_BIT | 1, 1, 0};
    const uint32_t slot[6] = {TLP_RESIDENT_BIT, 0, 1, TLP_RESIDENT_BIT | 1, 0, 2};
    check_placement("a resident index beyond the count", beyond, 2, 2, 0);
    check_placement("a resident index used twice", twice, 2, 2, 0);
    check_placement("a slot out of turn", turn, 2, 2, 0);
    check_placement("a slot beyond the ring", slot, 2, 2, 0);
    check_placement("a resident without an extent", mixed, 3, 2, 0);
    check_placement("no ring", mixed, 2, 0, 0);
    check_placement("a pinned extent in the ring", mixed, 2, 2, EXTENT + 1);
}

static int memory(uint64_t size, int seals) {
    int descriptor = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    EXPECT(descriptor >= 0 && ftruncate(descriptor, (off_t)size) == 0);
    EXPECT(seals == 0 || fcntl(descriptor, F_ADD_SEALS, seals) == 0);
    return descriptor;
}

static void descriptors_that_could_shrink_are_not_believed(void) {
    const struct {
        uint64_t size;
        uint64_t control;
        int seals;
        int want;
    } cases[] = {
        {EXTENT, 4096, F_SEAL_SHRINK, 0},
        {EXTENT, 4096, 0, TIERLINE_E_MALFORMED},
        {EXTENT - 1, 4096, F_SEAL_SHRINK, TIERLINE_E_MALFORMED},
        {EXTENT, 4095, F_SEAL_SHRINK, TIERLINE_E_MALFORMED},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct tl_arena arena;
        const uint32_t placement = 0;
        build(&arena, 1, &placement, 0, 1);
        EXPECT(tl_arena_place(&arena) == 0);
        arena.ring[0] = tl_descriptor_of(memory(cases[i].size, cases[i].seals));
        arena.control_descriptor = tl_descriptor_of(memory(cases[i].control, 0));
        EXPECT(tl_arena_accept(&arena) == cases[i].want);
        tl_arena_destroy(&arena);
    }
}

/* Whether the kernel lets this process read there: a pipe takes the byte or
 * says EFAULT. */
static int readable(const uint8_t *address) {
    int ends[2];
    EXPECT(pipe(ends) == 0);
    int yes = write(ends[1], address, 1) == 1;
    close(ends[0]);
    close(ends[1]);
    return yes;
}

static void pages_follow_the_gates(void) {
    struct tl_arena arena;
    build(&arena, 6, mixed, 2, 2);
    EXPECT(tl_arena_place(&arena) == 0);
    for (int i = 0; i < 2; i++) {
        arena.ring[i] = tl_descriptor_of(memory(EXTENT, F_SEAL_SHRINK));
        arena.resident[i] = tl_descriptor_of(memory(EXTENT, F_SEAL_SHRINK));
    }
    arena.control_descriptor = tl_descriptor_of(memory(4096, 0));
    EXPECT(tl_arena_accept(&arena) == 0 && arena.memory->map(&arena) == 0);
    const int sealed[6] = {1, 0, 0, 1, 0, 0};
    const int opened[6] = {1, 0, 1, 1, 1, 0};
    for (uint32_t e = 0; e < 6; e++) {
        EXPECT(readable(tl_extent_address(&arena, e)) == sealed[e]);
    }
    EXPECT(tl_arena_open(&arena, 1, 3) == 0);
    for (uint32_t e = 0; e < 6; e++) {
        EXPECT(readable(tl_extent_address(&arena, e)) == opened[e]);
    }
    uint8_t *copy = mmap(NULL, EXTENT, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT(copy != MAP_FAILED);
    memset(copy, 42, EXTENT);
    EXPECT(tl_host_replace(&arena, 5, copy, false) == 0);
    EXPECT(tl_arena_close(&arena, 0, 4) == 0);
    EXPECT(tl_extent_address(&arena, 5)[EXTENT - 1] == 42); /* a private copy stays */
    EXPECT(!readable(tl_extent_address(&arena, 2)));
    EXPECT(tl_arena_reset(&arena) == 0);
    for (uint32_t e = 0; e < 6; e++) {
        EXPECT(readable(tl_extent_address(&arena, e)) == sealed[e]);
    }
    tl_arena_destroy(&arena);
}

int main(void) {
    gates_ask_for_what_layers_read();
    what_a_later_layer_reads_again_is_kept();
    a_layer_wider_than_the_ring_is_refused();
    placements_that_make_no_sense_are_not_believed();
    descriptors_that_could_shrink_are_not_believed();
    pages_follow_the_gates();
    return 0;
}
