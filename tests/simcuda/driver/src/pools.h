/* Memory in stream order (cuMemAllocAsync), as far as programs need it to run at all. */
#pragma once

#include <stdint.h>

/* What a queued free does when its turn comes. */
void pool_free_now(uint64_t address);
