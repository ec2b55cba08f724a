/* The carving allocator against a map of its range, granule by granule. */
#include "memory/carve.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { GRANULES = 4096, BASE = 1 << 21, LIVE = 200, ROUNDS = 200000 };

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: %s does not hold\n", __FILE__, __LINE__, #condition);          \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

static unsigned char taken[GRANULES];

static void mark(uint64_t begin, uint64_t bytes, unsigned char value) {
    for (uint64_t i = (begin - BASE) / CARVE_GRANULE;
         i < (begin - BASE + bytes + CARVE_GRANULE - 1) / CARVE_GRANULE; i++) {
        CHECK(i < GRANULES && taken[i] != value);
        taken[i] = value;
    }
}

static uint64_t longest_gap(void) {
    uint64_t longest = 0;
    uint64_t run = 0;
    for (int i = 0; i < GRANULES; i++) {
        run = taken[i] ? 0 : run + 1;
        longest = run > longest ? run : longest;
    }
    return longest * CARVE_GRANULE;
}

static void at_random(void) {
    struct carve carve;
    static struct carve_piece live[LIVE];
    uint64_t random = 7;
    carve_begin(&carve, BASE, (uint64_t)GRANULES * CARVE_GRANULE);
    for (int round = 0; round < ROUNDS; round++) {
        random = random * UINT64_C(6364136223846793005) + 1442695040888963407;
        struct carve_piece *slot = &live[(random >> 33) % LIVE];
        if (slot->begin != 0) {
            mark(slot->begin, slot->bytes, 0);
            CHECK(carve_give(&carve, slot->begin));
            CHECK(!carve_give(&carve, slot->begin));
            slot->begin = 0;
            continue;
        }
        slot->bytes = 1 + (random >> 40) % (40 * CARVE_GRANULE);
        uint64_t largest = longest_gap();
        slot->begin = carve_take(&carve, slot->bytes);
        CHECK((slot->begin != 0) == (slot->bytes <= largest));
        if (slot->begin != 0) {
            CHECK(slot->begin % CARVE_GRANULE == 0);
            mark(slot->begin, slot->bytes, 1);
        }
    }
    for (int i = 0; i < LIVE; i++) {
        CHECK(live[i].begin == 0 || carve_give(&carve, live[i].begin));
    }
    CHECK(carve.count == 0 && carve_reach(&carve) == 0);
    carve_end(&carve);
}

static void by_hand(void) {
    struct carve carve;
    carve_begin(&carve, BASE, 8 * CARVE_GRANULE);
    CHECK(carve_take(&carve, 0) == 0);
    CHECK(carve_take(&carve, UINT64_MAX) == 0);
    CHECK(carve_take(&carve, 9 * CARVE_GRANULE) == 0);
    uint64_t first = carve_take(&carve, 3 * CARVE_GRANULE);
    uint64_t second = carve_take(&carve, 1);
    CHECK(first == BASE && second == BASE + 3 * CARVE_GRANULE);
    CHECK(carve_reach(&carve) == 4 * CARVE_GRANULE);
    CHECK(carve_give(&carve, first));
    CHECK(!carve_give(&carve, second + 1));
    /* The smaller of two gaps, 3 in front and 4 after. */
    CHECK(carve_take(&carve, 2 * CARVE_GRANULE) == BASE);
    CHECK(carve_take(&carve, 4 * CARVE_GRANULE + 1) == 0);
    CHECK(carve_take(&carve, 4 * CARVE_GRANULE) == BASE + 4 * CARVE_GRANULE);
    CHECK(carve_holds(&carve, BASE) && carve_holds(&carve, BASE + 8 * CARVE_GRANULE - 1));
    CHECK(!carve_holds(&carve, BASE - 1) && !carve_holds(&carve, BASE + 8 * CARVE_GRANULE));
    carve_end(&carve);
}

int main(void) {
    by_hand();
    at_random();
    return 0;
}
