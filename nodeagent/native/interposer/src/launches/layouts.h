/* Where the parameters of kernels lie, learned from the driver once a function.
 *
 * Handles are reused after their module is unloaded, and a wrong layout would read past a program's
 * parameters: everything is forgotten whenever a module, library or context ends.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { LAYOUT_PARAMETERS = 4096 }; /* the driver allows 32,764 bytes of them */

struct layout {
    const void *function;
    bool opaque; /* the driver does not describe it */
    uint32_t count;
    uint32_t bytes; /* to the end of the last parameter */
    struct {
        uint32_t offset, size;
    } parameters[];
};

/* These two hold no lock of their own: the observer's is held. */
const struct layout *layouts_find(const void *function);
/* False when there is no memory. Takes the layout over, unless there is one already. */
bool layouts_keep(struct layout *layout);
void layouts_clear(void);
/* How often everything was forgotten: a layout learned before that must not be kept. */
uint64_t layouts_epoch(void);

/* Asks the driver, without any lock. NULL when there is no memory. */
struct layout *layouts_learn(const void *function);
