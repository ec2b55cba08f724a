/* Copies that a structure describes: what device memory they read. */
#pragma once

#include "driver/abi.h"
#include "launches/observer.h"

/* From the first byte that is read to the last one, gaps between rows included; 0 bytes when the
 * source is no device memory by address. */
struct observer_range copies_source(const struct abi_copy3d *copy);
