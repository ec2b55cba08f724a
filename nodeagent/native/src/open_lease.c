/* See open_lease.h. */
#include "open_lease.h"

#include <sys/file.h>
#include <unistd.h>

struct said {
    uint64_t last_job; /* 0: closed */
    uint32_t arena;
    uint32_t of_agent;
};

bool tl_open_lease_take(const struct tl_open_lease *lease, uint64_t job, uint32_t arena) {
    struct said said;
    if (lease->descriptor < 0 || flock(lease->descriptor, LOCK_SH | LOCK_NB) != 0) {
        return false;
    }
    /* Only now: what is written after this finds the lock. */
    if (pread(lease->descriptor, &said, sizeof said, 0) == (ssize_t)sizeof said &&
        said.last_job >= job && said.arena == arena) {
        return true;
    }
    flock(lease->descriptor, LOCK_UN);
    return false;
}

void tl_open_lease_give_back(const struct tl_open_lease *lease) {
    flock(lease->descriptor, LOCK_UN);
}

void tl_open_lease_replace(struct tl_open_lease *lease, int descriptor) {
    if (lease->descriptor >= 0) {
        close(lease->descriptor);
    }
    lease->descriptor = descriptor;
}
