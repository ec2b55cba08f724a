/* See cached_lease.h. */
#include "link/cached_lease.h"

#include <sys/file.h>
#include <sys/mman.h>
#include <unistd.h>

#define MAPPED_BYTES 4096U

enum { WANTED = 2 };

/* Written with one system call each time, and read between two on the lock: what is read is as old
 * as the lock, or newer. */
struct tl_said {
    uint64_t last_job; /* 0: closed */
    uint32_t arena;
    uint32_t state; /* WANTED, or what only agents read */
};

bool tl_cached_lease_take(const struct tl_cached_lease *lease, uint64_t job, uint32_t arena,
                          bool any) {
    const struct tl_said *said = lease->said;
    if (said == NULL || !tl_cached_lease_is_ours(lease) ||
        flock(lease->file.number, LOCK_SH | LOCK_NB) != 0) {
        return false;
    }
    /* Only now: what is written after this finds the lock. */
    if (__atomic_load_n(&said->last_job, __ATOMIC_ACQUIRE) >= job &&
        (any || __atomic_load_n(&said->arena, __ATOMIC_ACQUIRE) == arena)) {
        return true;
    }
    flock(lease->file.number, LOCK_UN);
    return false;
}

bool tl_cached_lease_is_ours(const struct tl_cached_lease *lease) {
    return lease->said == NULL || tl_descriptor_is_ours(&lease->file);
}

bool tl_cached_lease_wanted(const struct tl_cached_lease *lease) {
    return lease->said != NULL && __atomic_load_n(&lease->said->state, __ATOMIC_ACQUIRE) == WANTED;
}

bool tl_cached_lease_give_back(const struct tl_cached_lease *lease) {
    if (tl_descriptor_is_ours(&lease->file)) {
        flock(lease->file.number, LOCK_UN);
    }
    return tl_cached_lease_wanted(lease); /* only now: an agent that found it locked wrote before */
}

void tl_cached_lease_replace(struct tl_cached_lease *lease, struct tl_descriptor descriptor) {
    if (lease->said != NULL) {
        munmap(lease->said, MAPPED_BYTES);
        lease->said = NULL;
    }
    tl_descriptor_close(&lease->file);
    lease->file = descriptor;
    if (descriptor.number >= 0) {
        void *mapped = mmap(NULL, MAPPED_BYTES, PROT_READ, MAP_SHARED, descriptor.number, 0);
        lease->said = mapped == MAP_FAILED ? NULL : mapped; /* without it each job is asked for */
    }
}
