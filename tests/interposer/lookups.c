/* What dlsym answers a library that asks for the next or the default definition of a name. */
#include <dlfcn.h>

#include "lookups.h"

__attribute__((visibility("default"))) int lookups_marker(void) {
    return 1;
}

__attribute__((visibility("default"))) void *lookups_next(const char *name) {
    return dlsym(RTLD_NEXT, name);
}

__attribute__((visibility("default"))) void *lookups_default(const char *name) {
    return dlsym(RTLD_DEFAULT, name);
}
