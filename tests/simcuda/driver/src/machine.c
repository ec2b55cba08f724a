/* The shared segment and the block files. See machine.h for the invariants. */
#include "machine.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "entry.h"
#include "simcuda.h"

struct shared_device {
    _Atomic uint64_t engine_free_ns[ENGINE_COUNT];
    _Atomic uint64_t engine_thousandths[ENGINE_COUNT];
    _Atomic uint64_t moved_bytes[ENGINE_COUNT];
    _Atomic uint64_t losses; /* odd while the device is lost */
    _Atomic uint64_t xid;    /* the code, and in the upper half a count */
};

struct segment {
    uint64_t magic;
    struct config config;
    pthread_mutex_t lock; /* guards used_bytes, next_block and the folder of blocks */
    uint64_t used_bytes[MAX_DEVICES + 1]; /* the last one is the host's */
    uint64_t next_block;
    struct shared_device devices[MAX_DEVICES];
};

static const uint64_t segment_magic = 0x53494d4355444131; /* "SIMCUDA1" */

static struct segment *machine;
static char blocks_folder[PATH_MAX];

uint64_t machine_now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000U + (uint64_t)now.tv_nsec;
}

void machine_sleep_until(uint64_t time_ns) {
    struct timespec until = {(time_t)(time_ns / 1000000000U), (long)(time_ns % 1000000000U)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) == EINTR) {
        /* a signal: go on */
    }
}

const struct config *machine_config(void) {
    return &machine->config;
}

static void block_path(char *path, int device, uint64_t bytes, uint64_t id) {
    snprintf(path, PATH_MAX, "%.4000s/%d-%" PRIu64 "-%" PRIu64, blocks_folder, device, bytes, id);
}

/* Visits the block files: removes those that nobody holds and sums the others. Under the lock. */
static void machine_sweep(void) {
    uint64_t used[MAX_DEVICES + 1] = {0};
    DIR *folder = opendir(blocks_folder);
    if (folder == NULL) {
        return;
    }
    for (struct dirent *name; (name = readdir(folder)) != NULL;) {
        int device;
        uint64_t bytes;
        uint64_t id;
        if (sscanf(name->d_name, "%d-%" SCNu64 "-%" SCNu64, &device, &bytes, &id) != 3 ||
            device < HOST_MEMORY || device >= MAX_DEVICES) {
            continue;
        }
        int fd = openat(dirfd(folder), name->d_name, O_RDONLY | O_CLOEXEC);
        if (fd < 0) {
            continue;
        }
        if (flock(fd, LOCK_EX | LOCK_NB) == 0) {
            unlinkat(dirfd(folder), name->d_name, 0);
        } else {
            used[device == HOST_MEMORY ? MAX_DEVICES : device] += bytes;
        }
        close(fd);
    }
    closedir(folder);
    memcpy(machine->used_bytes, used, sizeof used);
}

static void machine_lock(void) {
    if (pthread_mutex_lock(&machine->lock) == EOWNERDEAD) {
        /* A process died while it held the lock: its half-made block has no lock, a sweep removes
         * it. */
        machine_sweep();
        pthread_mutex_consistent(&machine->lock);
    }
}

static void machine_unlock(void) {
    pthread_mutex_unlock(&machine->lock);
}

static void machine_initialise(const struct config *config) {
    memset(machine, 0, sizeof *machine);
    machine->config = *config;
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(&machine->lock, &attributes);
    pthread_mutexattr_destroy(&attributes);
    for (int device = 0; device < MAX_DEVICES; device++) {
        for (int engine = 0; engine < ENGINE_COUNT; engine++) {
            atomic_init(&machine->devices[device].engine_thousandths[engine], 1000);
        }
    }
    /* Numbers continue where files of an earlier machine may still be held. */
    machine->next_block = machine_now_ns();
    machine->magic = segment_magic;
}

static int open_or_complain(const char *path, int flags) {
    int fd = open(path, flags | O_CLOEXEC, 0600);
    if (fd < 0) {
        fprintf(stderr, "simcuda: cannot open '%s': %s\n", path, strerror(errno));
    }
    return fd;
}

/* Two locks decide which process makes the machine. The entrance is held while one process joins.
 * The segment's own lock is held, shared, for each member's life; a process that gets it
 * exclusively is alone and makes a new machine. */
bool machine_join(void) {
    struct config config;
    char path[PATH_MAX];
    const char *folder = config_state_folder();
    if (!config_read(&config)) {
        return false;
    }
    if (mkdir(folder, 0700) != 0 && errno != EEXIST) {
        fprintf(stderr, "simcuda: cannot make the state folder '%s': %s\n", folder,
                strerror(errno));
        return false;
    }
    snprintf(blocks_folder, sizeof blocks_folder, "%.4000s/blocks", folder);
    mkdir(blocks_folder, 0700);
    snprintf(path, sizeof path, "%.4000s/entrance", folder);
    int entrance = open_or_complain(path, O_RDWR | O_CREAT);
    if (entrance < 0) {
        return false;
    }
    while (flock(entrance, LOCK_EX) != 0 && errno == EINTR) {
        /* a signal: go on */
    }
    snprintf(path, sizeof path, "%.4000s/segment", folder);
    int fd = open_or_complain(path, O_RDWR | O_CREAT);
    bool good = fd >= 0 && ftruncate(fd, sizeof(struct segment)) == 0;
    if (good) {
        void *memory =
            mmap(NULL, sizeof(struct segment), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        good = memory != MAP_FAILED;
        machine = good ? memory : NULL;
    }
    if (good) {
        bool alone = flock(fd, LOCK_EX | LOCK_NB) == 0;
        if (alone || machine->magic != segment_magic) {
            machine_initialise(&config);
        }
        flock(fd, LOCK_SH);
        machine_lock();
        machine_sweep();
        machine_unlock();
        if (memcmp(&machine->config, &config, sizeof config) != 0) {
            fprintf(stderr,
                    "simcuda: the machine in '%s' runs with other settings than this process has; "
                    "give all its processes the same, or this one another SIMCUDA_STATE\n",
                    folder);
            good = false;
        }
    }
    if (!good && machine != NULL) {
        munmap(machine, sizeof *machine);
        machine = NULL;
    }
    if (!good && fd >= 0) {
        close(fd);
    }
    close(entrance);
    return good;
}

bool machine_block_create(int device, uint64_t bytes, bool backed, struct block *block) {
    size_t account = device == HOST_MEMORY ? MAX_DEVICES : (size_t)device;
    uint64_t capacity = device == HOST_MEMORY ? UINT64_MAX : machine->config.memory_bytes;
    *block = (struct block){.fd = -1, .device = device, .bytes = bytes};
    machine_lock();
    if (bytes > capacity || machine->used_bytes[account] > capacity - bytes) {
        machine_sweep();
    }
    if (bytes <= capacity && machine->used_bytes[account] <= capacity - bytes) {
        char path[PATH_MAX];
        block->id = machine->next_block++;
        block_path(path, device, bytes, block->id);
        block->fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
        if (block->fd >= 0) {
            if (flock(block->fd, LOCK_SH) == 0 &&
                (!backed || ftruncate(block->fd, (off_t)bytes) == 0)) {
                machine->used_bytes[account] += bytes;
            } else {
                unlink(path);
                close(block->fd);
                block->fd = -1;
            }
        }
    }
    machine_unlock();
    return block->fd >= 0;
}

bool machine_block_adopt(int fd, struct block *block) {
    char link[64];
    char target[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, target, sizeof target - 1);
    if (length <= 0) {
        return false;
    }
    target[length] = '\0';
    const char *name = strrchr(target, '/');
    struct stat seen;
    struct stat named;
    char path[PATH_MAX];
    *block = (struct block){.fd = -1};
    if (name == NULL ||
        sscanf(name, "/%d-%" SCNu64 "-%" SCNu64, &block->device, &block->bytes, &block->id) != 3) {
        return false;
    }
    /* The name is a hint only: the inode under this machine's folder must be the same. */
    block_path(path, block->device, block->bytes, block->id);
    if (fstat(fd, &seen) != 0 || stat(path, &named) != 0 || seen.st_ino != named.st_ino ||
        seen.st_dev != named.st_dev) {
        return false;
    }
    block->fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    return block->fd >= 0;
}

bool machine_block_open(int device, uint64_t bytes, uint64_t id, struct block *block) {
    char path[PATH_MAX];
    *block = (struct block){.fd = -1, .device = device, .id = id, .bytes = bytes};
    block_path(path, device, bytes, id);
    machine_lock();
    block->fd = open(path, O_RDWR | O_CLOEXEC);
    if (block->fd >= 0) {
        flock(block->fd, LOCK_SH);
    }
    machine_unlock();
    return block->fd >= 0;
}

void machine_block_close(struct block *block) {
    if (block->fd < 0) {
        return;
    }
    char path[PATH_MAX];
    block_path(path, block->device, block->bytes, block->id);
    machine_lock();
    close(block->fd);
    block->fd = -1;
    int probe = open(path, O_RDONLY | O_CLOEXEC);
    if (probe >= 0) {
        if (flock(probe, LOCK_EX | LOCK_NB) == 0 && unlink(path) == 0) {
            machine->used_bytes[block->device == HOST_MEMORY ? MAX_DEVICES : block->device] -=
                block->bytes;
        }
        close(probe);
    }
    machine_unlock();
}

uint64_t machine_used_bytes(int device) {
    machine_lock();
    machine_sweep();
    uint64_t used = machine->used_bytes[device];
    machine_unlock();
    return used;
}

uint64_t machine_duration_ns(int device, enum engine engine, uint64_t bytes, uint64_t bandwidth) {
    if (bandwidth == 0) {
        return 0;
    }
    uint64_t thousandths = atomic_load(&machine->devices[device].engine_thousandths[engine]);
    double seconds = (double)bytes / (double)bandwidth * 1000.0 / (double)thousandths;
    return (uint64_t)(seconds * 1e9);
}

uint64_t machine_compute_ns(int device, uint64_t duration_ns) {
    uint64_t speed = atomic_load(&machine->devices[device].engine_thousandths[ENGINE_COMPUTE]);
    return (uint64_t)((double)duration_ns * (double)machine->config.compute_thousandths /
                      (double)speed);
}

uint64_t machine_engine_take(int device, enum engine engine, uint64_t duration_ns, uint64_t since) {
    _Atomic uint64_t *word = &machine->devices[device].engine_free_ns[engine];
    uint64_t start = since != 0 ? since : machine_now_ns();
    uint64_t free_ns = atomic_load(word);
    uint64_t end;
    do {
        end = (free_ns > start ? free_ns : start) + duration_ns;
    } while (!atomic_compare_exchange_weak(word, &free_ns, end));
    return end;
}

void machine_count_moved(int device, enum engine engine, uint64_t bytes) {
    atomic_fetch_add(&machine->devices[device].moved_bytes[engine], bytes);
}

void machine_set_speed(int device, enum engine engine, uint64_t thousandths) {
    atomic_store(&machine->devices[device].engine_thousandths[engine], thousandths);
}

void machine_set_lost(int device, bool lost) {
    uint64_t losses = atomic_load(&machine->devices[device].losses);
    while (((losses & 1) != 0) != lost) {
        if (atomic_compare_exchange_weak(&machine->devices[device].losses, &losses, losses + 1)) {
            return;
        }
    }
}

bool machine_is_lost(int device) {
    return atomic_load(&machine->devices[device].losses) & 1;
}

uint64_t machine_loss_generation(int device) {
    return atomic_load(&machine->devices[device].losses);
}

void machine_report_xid(int device, uint32_t code) {
    _Atomic uint64_t *word = &machine->devices[device].xid;
    uint64_t last = atomic_load(word);
    while ((uint32_t)last != code) {
        uint64_t next = (((last >> 32) + 1) << 32) | code;
        if (atomic_compare_exchange_weak(word, &last, next)) {
            return;
        }
    }
}

uint64_t machine_xid(int device) {
    return atomic_load(&machine->devices[device].xid);
}

SIM_EXPORT uint64_t simcuda_moved_bytes(int device, int engine) {
    if (machine == NULL || device < 0 || device >= MAX_DEVICES || engine < 0 ||
        engine >= ENGINE_COUNT) {
        return 0;
    }
    return atomic_load(&machine->devices[device].moved_bytes[engine]);
}
