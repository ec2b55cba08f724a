/* Addresses of a GPU at which nothing is to lie, so that what reads there faults.
 *
 * A kept distance from one weight to another leads, from where the first lies now, to as far as any
 * two allocations of a GPU are apart: around an arena nothing else lies so near. A kept address
 * leads to where a weight lay before it moved: that stays reserved while the weight is away.
 *
 * Best effort, both: a driver may refuse such wishes, and an allocation of the program that holds
 * more than weights that moved stays.
 */
#ifndef TIERLINE_PLACES_H
#define TIERLINE_PLACES_H

#include "arena/arena.h"

/* Reserves `bytes` at high addresses, with nothing around them if the driver allows that. 0 or a
 * code. */
int tl_places_high(tierline_place *around, uint64_t *address, uint64_t bytes);
/* Reserves of [address, +bytes), by whole granules, what nothing uses. 0 or a code. */
int tl_places_keep(struct tl_device_arena *gpu, uint64_t address, uint64_t bytes);
void tl_places_free(const tierline_place *place);

#endif
