/* Ranges of addresses that are watched, by address, and the search for what lies in them.
 *
 * A word is compared with the lowest and the highest address first, so that what is no address
 * costs nothing. All under the observer's lock.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "tierline/interposer.h"

struct watched_set;

/* A set of both lists' ranges, numbered as they stand, the first list's first. What overlaps one of
 * the first list is left out of the rest. 0, -ENOMEM, or -EINVAL when one is empty or two of one
 * list overlap. */
int watched_make(const tierline_weight *first, uint32_t first_count, const tierline_weight *rest,
                 uint32_t rest_count, struct watched_set **out);
void watched_free(struct watched_set *old); /* NULL is none */
/* Puts a set in the place of the one that is searched; NULL: nothing is watched. */
void watched_use(struct watched_set *fresh);

extern struct watched_bounds { uint64_t lowest, span; } watched_bounds;

static inline bool watched_may_hold(struct watched_bounds bounds, uint64_t word) {
    return word - bounds.lowest < bounds.span;
}

/* How many ranges there are: no search finds more. */
uint32_t watched_count(void);

struct watched_found {
    uint32_t *weights;
    uint32_t room, count;
};

/* A new search: it finds each range once. */
void watched_begin(void);
/* Adds all that lies in [address, address + bytes), as far as there is room. */
void watched_find(uint64_t address, uint64_t bytes, struct watched_found *found);
