/* Physical memory by handle, and where it is mapped (cuMemCreate, cuMemMap and what belongs to
 * them). */
#pragma once

#include <cuda.h>
#include <stdbool.h>
#include <stdint.h>

/* May memory of the handle leave the process, and by which kinds of descriptor? 0 for an unknown
 * handle. */
unsigned vmm_handle_types(uint64_t handle);
/* The reservation that holds the address. */
bool vmm_reservation(uint64_t address, uint64_t *base, uint64_t *size);
/* In a forked child: gives up every descriptor of physical memory, touching nothing else. */
void vmm_close_descriptors(void);
