/* Hooks by name. Uses nothing of the C library: it runs inside dlsym, which sanitizers call before
 * they are ready. */
#pragma once

#include "driver/hooks.h"

enum { NO_HOOK = -1 };

int names_compare(const char *one, const char *other);
/* The hook of an exact symbol, or NO_HOOK. */
int names_find(const char *symbol);
