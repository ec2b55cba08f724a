/* Somebody else's interposer, of the kind that tools preload: it hooks dlsym and one allocation by
 * calling on to whatever comes after it, and counts. At exit it says on stderr what it saw. */
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

typedef int allocate(uint64_t *address, size_t bytes);
typedef void *look_up(void *handle, const char *name);

static int allocations;
static look_up *next_dlsym;
static allocate *found_allocate;

int cuMemAlloc_v2(uint64_t *address, size_t bytes);
void *other_dlsym(void *handle, const char *name);

static look_up *next_look_up(void) {
    if (next_dlsym == NULL) {
        next_dlsym = (look_up *)dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
    }
    return next_dlsym;
}

EXPORT int cuMemAlloc_v2(uint64_t *address, size_t bytes) {
    allocate *next = (allocate *)next_look_up()(RTLD_NEXT, "cuMemAlloc_v2");
    if (next == NULL) {
        next = found_allocate; /* the driver was loaded out of sight */
    }
    allocations++;
    return next == NULL ? 3 : next(address, bytes);
}

EXPORT void *other_dlsym(void *handle, const char *name) {
    void *found = next_look_up()(handle, name);
    if (found != NULL && strcmp(name, "cuMemAlloc_v2") == 0 && handle != RTLD_NEXT) {
        if (found != (void *)cuMemAlloc_v2) {
            found_allocate = (allocate *)found;
        }
        return (void *)cuMemAlloc_v2;
    }
    return found;
}
__asm__(".symver other_dlsym, dlsym@GLIBC_2.2.5");
__asm__(".symver other_dlsym_now, dlsym@@GLIBC_2.34");
extern __typeof__(other_dlsym) other_dlsym_now
    __attribute__((alias("other_dlsym"), visibility("default")));

__attribute__((destructor)) static void report(void) {
    fprintf(stderr, "other interposer: %d allocations\n", allocations);
}
