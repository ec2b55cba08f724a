/* See lookups.c. */
#pragma once

int lookups_marker(void);
void *lookups_next(const char *name);
void *lookups_default(const char *name);
