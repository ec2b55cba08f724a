/* Which of a program's allocations are swapped: TIERLINE_SWAP_OBJECTS, numbers and ranges of them
 * ("0-3,7,12-"), counted from 0 in the order in which the program allocates. Without the variable
 * all are. Pure, but for the environment. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

enum { SWAP_OBJECTS_MOST = 128 };

struct swap_objects {
    bool all;
    uint32_t count;
    struct {
        uint64_t first, last; /* both included */
    } ranges[SWAP_OBJECTS_MOST];
};

/* False when the text, which may be NULL, is not understood. */
bool swap_objects_read(struct swap_objects *objects, const char *text);
bool swap_objects_hold(const struct swap_objects *objects, uint64_t number);
