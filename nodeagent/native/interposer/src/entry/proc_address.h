/* The hooks of cuGetProcAddress: the driver answers, and the hook of what it answered is given. */
#pragma once

#include "driver/hooks.h"

int handle_proc_address(enum hook hook, const char *symbol, void **function, int cuda_version,
                        uint64_t flags);
int handle_proc_address_v2(enum hook hook, const char *symbol, void **function, int cuda_version,
                           uint64_t flags, void *status);
