/* Which memory a piece of work may touch, as far as its parameters tell. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "work.h"

bool work_touches(const struct work *work, uint64_t base, uint64_t size);
/* "a copy", for a sentence. */
const char *work_name(const struct work *work);
