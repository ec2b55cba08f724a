/* What the driver says about an address that Tierline backs (ranges.h): what it would say if the
 * memory were the program's own cuMemAlloc. Everything else is the driver's answer. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "driver/hooks.h"

int pointers_address_range(cuMemGetAddressRange_v2_function *next, uint64_t *base, size_t *bytes,
                           uint64_t address);
int pointers_attribute(cuPointerGetAttribute_function *next, void *data, int attribute,
                       uint64_t address);
int pointers_attributes(cuPointerGetAttributes_function *next, unsigned int count, int *attributes,
                        void **data, uint64_t address);

/* Whether memory may be given to others (a ticket, a descriptor, a binding), which would see of it
 * what is another task's next. Else the answer, a sentence on stderr and a count. */
int pointers_may_leave(uint64_t address, const char *asked);
/* The handle that backs an allocation is Tierline's; memory of cuMemAlloc has none. */
int pointers_retain(cuMemRetainAllocationHandle_function *next, uint64_t *handle, void *address);
