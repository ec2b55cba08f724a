/* What the driver says about an address that Tierline backs (ranges.h): what it would say if the
 * memory were the program's own cuMemAlloc. Everything else is the driver's answer. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "hooks.h"

int pointers_address_range(cuMemGetAddressRange_v2_function *next, uint64_t *base, size_t *bytes,
                           uint64_t address);
int pointers_attribute(cuPointerGetAttribute_function *next, void *data, int attribute,
                       uint64_t address);
int pointers_attributes(cuPointerGetAttributes_function *next, unsigned int count, int *attributes,
                        void **data, uint64_t address);

/* Memory by handle has no IPC ticket: refused, with a sentence, before the driver's vague answer.
 */
int pointers_ipc_handle(cuIpcGetMemHandle_function *next, void *handle, uint64_t address);
int pointers_pool_export(cuMemPoolExportPointer_function *next, void *data, uint64_t address);
/* The handle behind an allocation is Tierline's; memory of cuMemAlloc has none. */
int pointers_retain(cuMemRetainAllocationHandle_function *next, uint64_t *handle, void *address);
