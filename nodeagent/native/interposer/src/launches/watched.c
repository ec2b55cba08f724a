/* See watched.h. */
#include "launches/watched.h"

#include <errno.h>
#include <stdlib.h>

struct range {
    uint64_t begin, end;
    uint32_t weight;
};

struct watched_set {
    uint64_t *marks; /* by weight: the search that found it last */
    uint32_t count;
    struct range ranges[]; /* by address */
};

struct watched_bounds watched_bounds;
static struct watched_set *set;
static uint64_t mark;

static int by_address(const void *one, const void *other) {
    uint64_t a = ((const struct range *)one)->begin;
    uint64_t b = ((const struct range *)other)->begin;
    return (a > b) - (a < b);
}

/* Takes out what overlaps a range of the first list and is not of it. False: others overlap. */
static bool keep_first_list(struct watched_set *of, uint32_t first_count) {
    uint32_t kept = 0;
    for (uint32_t i = 0; i < of->count; i++) {
        const struct range range = of->ranges[i];
        bool beats = range.weight < first_count;
        while (beats && kept > 0 && of->ranges[kept - 1].end > range.begin &&
               of->ranges[kept - 1].weight >= first_count) {
            kept--;
        }
        if (kept == 0 || range.begin >= of->ranges[kept - 1].end) {
            of->ranges[kept++] = range;
        } else if (beats || of->ranges[kept - 1].weight >= first_count) {
            return false;
        }
    }
    of->count = kept;
    return true;
}

int watched_make(const tierline_weight *first, uint32_t first_count, const tierline_weight *rest,
                 uint32_t rest_count, struct watched_set **out) {
    uint32_t count = first_count + rest_count;
    struct watched_set *fresh = malloc(sizeof *fresh + count * sizeof *fresh->ranges);
    uint64_t *marks = calloc(count + 1U, sizeof *marks);
    if (fresh == NULL || marks == NULL) {
        free(fresh);
        free(marks);
        return -ENOMEM;
    }
    *fresh = (struct watched_set){.marks = marks, .count = count};
    bool sound = true;
    for (uint32_t i = 0; i < count; i++) {
        const tierline_weight *weight = i < first_count ? &first[i] : &rest[i - first_count];
        uint64_t begin = weight->address;
        fresh->ranges[i] =
            (struct range){.begin = begin, .end = begin + weight->bytes, .weight = i};
        sound = sound && weight->bytes != 0 && begin + weight->bytes >= begin;
    }
    qsort(fresh->ranges, count, sizeof *fresh->ranges, by_address);
    if (!sound || !keep_first_list(fresh, first_count)) {
        watched_free(fresh);
        return -EINVAL;
    }
    *out = fresh;
    return 0;
}

void watched_free(struct watched_set *old) {
    if (old != NULL) {
        free(old->marks);
        free(old);
    }
}

void watched_use(struct watched_set *fresh) {
    watched_free(set);
    set = fresh;
    mark = 0;
    watched_bounds = (struct watched_bounds){0};
    if (fresh != NULL && fresh->count > 0) {
        watched_bounds.lowest = fresh->ranges[0].begin;
        watched_bounds.span = fresh->ranges[fresh->count - 1].end - watched_bounds.lowest;
    }
}

void watched_begin(void) {
    mark++;
}

uint32_t watched_count(void) {
    return set == NULL ? 0 : set->count;
}

/* The first range that ends after an address. */
static uint32_t search(uint64_t address) {
    uint32_t low = 0;
    uint32_t high = set->count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (set->ranges[middle].end <= address) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

void watched_find(uint64_t address, uint64_t bytes, struct watched_found *found) {
    if (set == NULL || bytes == 0) {
        return;
    }
    for (uint32_t i = search(address); i < set->count; i++) {
        const struct range *range = &set->ranges[i];
        if (range->begin > address && range->begin - address >= bytes) {
            break;
        }
        if (set->marks[range->weight] != mark && found->count < found->room) {
            set->marks[range->weight] = mark;
            found->weights[found->count++] = range->weight;
        }
    }
}
