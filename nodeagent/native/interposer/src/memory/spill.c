/* See spill.h.
 *
 * A block is one mapping of host memory. Its pieces are the program's allocations; a block without
 * pieces is unmapped. The registry of ranges decides the owner of a piece: taking a range out is
 * what makes a free valid, so two frees of one address cannot both go on.
 *
 * Memory freed in stream order is given back by the next call of this module that finds the stream
 * there (late.h).
 *
 * Under the lock the driver is asked for nothing but access, so that no block is overlooked when a
 * device gets a peer.
 */
#include "memory/spill.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "budget/budget.h"
#include "budget/ledger.h"
#include "driver/driver.h"
#include "driver/standard_error.h"
#include "memory/carve.h"
#include "memory/late.h"
#include "memory/ranges.h"

enum { SHARED_MOST_BYTES = 1 << 20, PITCH_BYTES = 512, MAX_DEVICES = 64 };

struct block {
    struct block *next;
    void *context;
    int device;
    bool shared; /* by allocations of up to SHARED_MOST_BYTES */
    uint64_t handle;
    struct carve pieces;
};

/* The driver's functions that this module needs; all or none are there. */
struct driver {
    cuCtxGetCurrent_function *context;
    cuCtxGetDevice_function *device;
    cuCtxPushCurrent_v2_function *push;
    cuCtxPopCurrent_v2_function *pop;
    cuCtxSynchronize_function *synchronize;
    cuDeviceGetAttribute_function *attribute;
    cuMemGetAllocationGranularity_function *granularity;
    cuMemCreate_function *create;
    cuMemRelease_function *release;
    cuMemAddressReserve_function *reserve;
    cuMemAddressFree_function *unreserve;
    cuMemMap_function *map;
    cuMemUnmap_function *unmap;
    cuMemSetAccess_function *set_access;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct block *blocks;
static struct late_list lates = LATE_LIST_INITIALIZER;
static uint64_t peers[MAX_DEVICES]; /* devices that may use each device's memory, a bit each */
static atomic_bool enabled;

bool spill_read_environment(void) {
    const char *text = getenv("TIERLINE_ON_EXCEEDED");
    bool spill = text != NULL && strcmp(text, "Spill") == 0;
    if (text != NULL && !spill && strcmp(text, "Fail") != 0) {
        standard_error_say(
            "tierline: cannot read TIERLINE_ON_EXCEEDED='%s', what becomes of memory beyond the "
            "budget: it is Fail or Spill; CUDA stays off\n",
            text);
        return false;
    }
    atomic_store(&enabled, spill);
    return true;
}

static bool open_driver(struct driver *driver) {
    *driver = (struct driver){
        .context = DRIVER(USED, cuCtxGetCurrent),
        .device = DRIVER(USED, cuCtxGetDevice),
        .push = DRIVER(USED, cuCtxPushCurrent_v2),
        .pop = DRIVER(USED, cuCtxPopCurrent_v2),
        .synchronize = DRIVER(USED, cuCtxSynchronize),
        .attribute = DRIVER(USED, cuDeviceGetAttribute),
        .granularity = DRIVER(USED, cuMemGetAllocationGranularity),
        .create = DRIVER(HOOK, cuMemCreate),
        .release = DRIVER(HOOK, cuMemRelease),
        .reserve = DRIVER(HOOK, cuMemAddressReserve),
        .unreserve = DRIVER(HOOK, cuMemAddressFree),
        .map = DRIVER(HOOK, cuMemMap),
        .unmap = DRIVER(HOOK, cuMemUnmap),
        .set_access = DRIVER(HOOK, cuMemSetAccess),
    };
    /* Virtual memory is the youngest of these. */
    return driver->create != NULL && driver->set_access != NULL && driver->push != NULL;
}

/* ---- blocks */

static struct abi_allocation host_memory(const struct driver *driver, int device) {
    int node = 0;
    /* A machine that does not tell the node has one. */
    if (driver->attribute(&node, ABI_DEVICE_HOST_NUMA_ID, device) != ABI_SUCCESS || node < 0) {
        node = 0;
    }
    return (struct abi_allocation){.type = ABI_ALLOCATION_PINNED,
                                   .location = {.type = ABI_LOCATION_HOST_NUMA, .id = node}};
}

static int open_to(const struct driver *driver, const struct block *block, uint64_t devices) {
    int result = ABI_SUCCESS;
    for (int device = 0; result == ABI_SUCCESS && device < MAX_DEVICES; device++) {
        if ((devices >> device & 1) != 0) {
            struct abi_access access = {{ABI_LOCATION_DEVICE, device}, ABI_ACCESS_READ_WRITE};
            result = driver->set_access(block->pieces.base, block->pieces.bytes, &access, 1);
        }
    }
    return result;
}

static void block_end(const struct driver *driver, struct block *block) {
    driver->unmap(block->pieces.base, block->pieces.bytes);
    driver->unreserve(block->pieces.base, block->pieces.bytes);
    driver->release(block->handle);
    carve_end(&block->pieces);
    free(block);
}

/* Maps host memory for `bytes`; NULL when the driver has none. */
static struct block *block_begin(const struct driver *driver, void *context, int device,
                                 uint64_t bytes) {
    struct abi_allocation properties = host_memory(driver, device);
    size_t grain = 0;
    struct block *block = calloc(1, sizeof *block);
    if (block == NULL || driver->granularity(&grain, &properties, 0) != ABI_SUCCESS || grain == 0 ||
        bytes > UINT64_MAX - grain) {
        free(block);
        return NULL;
    }
    uint64_t size = (bytes + grain - 1) / grain * grain;
    uint64_t base = 0;
    block->context = context;
    block->device = device;
    block->shared = bytes <= SHARED_MOST_BYTES;
    if (driver->create(&block->handle, size, &properties, 0) != ABI_SUCCESS) {
        free(block);
        return NULL;
    }
    if (driver->reserve(&base, size, 0, 0, 0) != ABI_SUCCESS) {
        driver->release(block->handle);
        free(block);
        return NULL;
    }
    if (driver->map(base, size, 0, block->handle, 0) != ABI_SUCCESS) {
        driver->unreserve(base, size);
        driver->release(block->handle);
        free(block);
        return NULL;
    }
    carve_begin(&block->pieces, base, size);
    return block;
}

/* A piece of a block of its own; 0 when there is no memory. */
static uint64_t take_fresh(const struct driver *driver, void *context, int device, uint64_t bytes) {
    struct block *block = block_begin(driver, context, device, bytes);
    uint64_t begin = block == NULL ? 0 : carve_take(&block->pieces, bytes);
    pthread_mutex_lock(&lock);
    if (begin != 0 &&
        open_to(driver, block, peers[device] | UINT64_C(1) << device) == ABI_SUCCESS) {
        block->next = blocks;
        blocks = block;
        block = NULL;
    }
    pthread_mutex_unlock(&lock);
    if (block != NULL) {
        block_end(driver, block);
        return 0;
    }
    return begin;
}

/* Takes a piece of a block that is there. */
static uint64_t take_shared(const void *context, uint64_t bytes) {
    uint64_t begin = 0;
    pthread_mutex_lock(&lock);
    for (struct block *block = blocks; block != NULL && begin == 0; block = block->next) {
        if (block->shared && block->context == context) {
            begin = carve_take(&block->pieces, bytes);
        }
    }
    pthread_mutex_unlock(&lock);
    return begin;
}

/* Gives a piece back whose range was taken out; ends its block when it was the last one. */
static void give(const struct driver *driver, uint64_t begin) {
    struct block *empty = NULL;
    pthread_mutex_lock(&lock);
    for (struct block **link = &blocks; *link != NULL; link = &(*link)->next) {
        struct block *block = *link;
        if (carve_holds(&block->pieces, begin)) {
            carve_give(&block->pieces, begin);
            if (block->pieces.count == 0) {
                *link = block->next;
                empty = block;
            }
            break;
        }
    }
    pthread_mutex_unlock(&lock);
    if (empty != NULL) {
        block_end(driver, empty);
    }
}

/* Of memory freed in stream order. */
static void give_reached(uint64_t address) {
    struct driver driver;
    if (open_driver(&driver)) {
        give(&driver, address);
    }
}

/* ---- what hooks call */

static void say_once(uint64_t bytes) {
    static atomic_bool said;
    if (!atomic_exchange(&said, true)) {
        standard_error_say(
            "tierline: the next %llu bytes exceed the budget of %llu bytes of device memory and "
            "lie in host memory (TIERLINE_ON_EXCEEDED=Spill); kernels reach them at the speed "
            "of the link\n",
            (unsigned long long)bytes, (unsigned long long)budget_bytes());
    }
}

int spill_allocate(uint64_t *address, size_t bytes) {
    struct driver driver;
    if (!atomic_load(&enabled) || !open_driver(&driver)) {
        return ABI_OUT_OF_MEMORY;
    }
    if (address == NULL || bytes == 0) {
        return ABI_INVALID_VALUE;
    }
    void *context = NULL;
    int device = 0;
    int result = driver.context(&context);
    result = result == ABI_SUCCESS ? driver.device(&device) : result;
    if (result != ABI_SUCCESS) {
        return result; /* no context: the driver's own word for it */
    }
    if (device < 0 || device >= MAX_DEVICES) {
        return ABI_OUT_OF_MEMORY;
    }
    late_collect(&lates, give_reached);
    uint64_t begin = bytes <= SHARED_MOST_BYTES ? take_shared(context, bytes) : 0;
    begin = begin == 0 ? take_fresh(&driver, context, device, bytes) : begin;
    if (begin == 0) {
        return ABI_OUT_OF_MEMORY;
    }
    struct range range = {.begin = begin,
                          .bytes = bytes,
                          .kind = RANGE_SPILLED,
                          .device = device,
                          .context = context};
    if (!ranges_add(&range)) {
        give(&driver, begin);
        return ABI_OUT_OF_MEMORY;
    }
    ledger_add(TIERLINE_HELD_SPILLED, begin, bytes, 0);
    say_once(bytes);
    *address = begin;
    return ABI_SUCCESS;
}

int spill_allocate_pitch(uint64_t *address, size_t *pitch, size_t width_bytes, size_t height,
                         unsigned int element_bytes) {
    if (!atomic_load(&enabled)) {
        return ABI_OUT_OF_MEMORY;
    }
    if (pitch == NULL || width_bytes == 0 || height == 0 ||
        (element_bytes != 4 && element_bytes != 8 && element_bytes != 16) ||
        width_bytes > SIZE_MAX - PITCH_BYTES) {
        return ABI_INVALID_VALUE;
    }
    size_t row = (width_bytes + PITCH_BYTES - 1) / PITCH_BYTES * PITCH_BYTES;
    int result =
        row > SIZE_MAX / height ? ABI_OUT_OF_MEMORY : spill_allocate(address, row * height);
    if (result == ABI_SUCCESS) {
        *pitch = row;
    }
    return result;
}

int spill_create(cuMemCreate_function *next, uint64_t *handle, size_t bytes, const void *properties,
                 unsigned long long flags) {
    struct driver driver;
    const struct abi_allocation *asked = properties;
    if (!atomic_load(&enabled) || asked == NULL || !open_driver(&driver)) {
        return ABI_OUT_OF_MEMORY;
    }
    late_collect(&lates, give_reached);
    struct abi_allocation host = host_memory(&driver, asked->location.id);
    host.handle_types = asked->handle_types;
    int result = next(handle, bytes, &host, flags);
    if (result == ABI_SUCCESS) {
        ledger_add(TIERLINE_HELD_SPILLED, LEDGER_HANDLE(*handle), bytes, 0);
        say_once(bytes);
    }
    return result;
}

static int wait_for(const struct driver *driver, void *context) {
    void *popped = NULL;
    int result = driver->push(context);
    if (result == ABI_SUCCESS) {
        result = driver->synchronize();
        driver->pop(&popped);
    }
    return result;
}

int spill_free(cuMemFree_v2_function *next, uint64_t address) {
    struct range range;
    struct driver driver;
    if (!ranges_remove(address, RANGE_SPILLED, &range)) {
        return next(address);
    }
    int result = open_driver(&driver) ? wait_for(&driver, range.context) : ABI_NOT_INITIALIZED;
    if (result != ABI_SUCCESS) {
        ranges_restore(&range);
        return result;
    }
    give(&driver, address);
    late_collect(&lates, give_reached);
    return ABI_SUCCESS;
}

int spill_free_async(cuMemFreeAsync_function *next, uint64_t address, void *stream,
                     bool per_thread) {
    struct range range;
    if (!ranges_remove(address, RANGE_SPILLED, &range)) {
        return next(address, stream);
    }
    int result = late_put(&lates, address, range.context, stream, per_thread);
    if (result != ABI_SUCCESS) {
        ranges_restore(&range);
        return result;
    }
    late_collect(&lates, give_reached);
    return ABI_SUCCESS;
}

void spill_peer_enabled(void *peer_context) {
    struct driver driver;
    void *popped = NULL;
    int user = 0;
    int owner = 0;
    if (!atomic_load(&enabled) || !open_driver(&driver) || driver.device(&user) != ABI_SUCCESS ||
        driver.push(peer_context) != ABI_SUCCESS) {
        return;
    }
    int result = driver.device(&owner);
    result = result == ABI_SUCCESS ? driver.synchronize() : result; /* it may use the blocks */
    driver.pop(&popped);
    if (result != ABI_SUCCESS || user < 0 || user >= MAX_DEVICES || owner < 0 ||
        owner >= MAX_DEVICES) {
        return;
    }
    pthread_mutex_lock(&lock);
    peers[owner] |= UINT64_C(1) << user;
    for (const struct block *block = blocks; block != NULL; block = block->next) {
        if (block->device == owner) {
            (void)open_to(&driver, block, UINT64_C(1) << user);
        }
    }
    pthread_mutex_unlock(&lock);
}

void spill_forget_context(const void *context) {
    struct driver driver;
    struct range removed;
    bool usable = open_driver(&driver);
    struct block *gone = NULL;
    pthread_mutex_lock(&lock);
    for (struct block **link = &blocks; *link != NULL;) {
        struct block *block = *link;
        if (block->context == context) {
            *link = block->next;
            block->next = gone;
            gone = block;
        } else {
            link = &block->next;
        }
    }
    pthread_mutex_unlock(&lock);
    late_forget(&lates, context);
    while (gone != NULL) {
        struct block *block = gone;
        gone = block->next;
        for (size_t i = 0; i < block->pieces.count; i++) {
            (void)ranges_remove(block->pieces.pieces[i].begin, RANGE_SPILLED, &removed);
        }
        if (usable) {
            block_end(&driver, block);
        }
    }
}

void spill_fork_before(void) {
    pthread_mutex_lock(&lock);
    pthread_mutex_lock(&lates.lock);
}

void spill_fork_after(bool in_child) {
    pthread_mutex_unlock(&lates.lock);
    if (in_child) {
        while (blocks != NULL) {
            struct block *block = blocks;
            blocks = block->next;
            carve_end(&block->pieces);
            free(block);
        }
        late_forget(&lates, NULL);
        memset(peers, 0, sizeof peers);
        atomic_store(&enabled, false);
    }
    pthread_mutex_unlock(&lock);
}
