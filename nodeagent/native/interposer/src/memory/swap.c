/* See swap.h.
 *
 * The workspace is borrowed once, under a mutex of its own, because that asks the agent; from then
 * on a call takes the lock for the pieces only, and no driver call is made under it. As in spill.c,
 * taking a range out is what makes a free valid.
 */
#include "memory/swap.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "budget/budget.h"
#include "driver/driver.h"
#include "driver/standard_error.h"
#include "launches/captures.h"
#include "memory/carve.h"
#include "memory/late.h"
#include "memory/ranges.h"
#include "memory/spill.h"
#include "memory/swap_objects.h"

enum { PITCH_BYTES = 512 };

enum state {
    OFF,    /* no workspace is wanted, or it cannot be had and the program runs without */
    WANTED, /* nobody has allocated yet */
    LENT,
    REFUSED, /* every allocation is answered `refusal` */
};

static pthread_mutex_t borrowing = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of `pieces` */
static struct late_list lates = LATE_LIST_INITIALIZER;
static atomic_int state;
static int refusal;
static uint64_t wanted_bytes;
static struct swap_objects objects;
static _Atomic uint64_t objects_seen;
static struct swap_loan loan; /* valid while LENT */
static struct carve pieces;

bool swap_read_environment(void) {
    const char *bytes = getenv("TIERLINE_SWAP");
    const char *which = getenv("TIERLINE_SWAP_OBJECTS");
    if (bytes != NULL && !budget_parse(bytes, &wanted_bytes)) {
        standard_error_say(
            "tierline: cannot read the size of the swapped memory TIERLINE_SWAP='%s': it is a "
            "number of bytes above 0 with Ki, Mi, Gi or nothing after it; CUDA stays off\n",
            bytes);
        return false;
    }
    if (!swap_objects_read(&objects, which)) {
        standard_error_say(
            "tierline: cannot read TIERLINE_SWAP_OBJECTS='%s', the allocations that are "
            "swapped: numbers from 0 up and ranges of them, as in 0-3,7,12-; CUDA stays off\n",
            which);
        return false;
    }
    atomic_store(&state, bytes != NULL && &swap_lender != NULL ? WANTED : OFF);
    return true;
}

uint64_t swap_wanted_bytes(void) {
    return atomic_load(&state) == OFF ? 0 : wanted_bytes;
}

/* Under `borrowing`. */
static void borrow(void) {
    struct swap_loan fresh = {0};
    int result = swap_lender.lend(wanted_bytes, &fresh);
    if (result == ABI_SUCCESS) {
        pthread_mutex_lock(&lock);
        loan = fresh;
        carve_begin(&pieces, loan.base, loan.bytes);
        pthread_mutex_unlock(&lock);
        atomic_store_explicit(&state, LENT, memory_order_release);
    } else if (result == ABI_NOT_FOUND) {
        atomic_store(&state, OFF);
    } else {
        refusal = result;
        atomic_store_explicit(&state, REFUSED, memory_order_release);
    }
}

int swap_borrow(struct swap_loan *lent) {
    if (atomic_load_explicit(&state, memory_order_acquire) == WANTED) {
        pthread_mutex_lock(&borrowing);
        if (atomic_load(&state) == WANTED) {
            borrow();
        }
        pthread_mutex_unlock(&borrowing);
    }
    switch (atomic_load_explicit(&state, memory_order_acquire)) {
    case LENT:
        pthread_mutex_lock(&lock);
        *lent = loan;
        pthread_mutex_unlock(&lock);
        return ABI_SUCCESS;
    case REFUSED:
        return refusal;
    default:
        return ABI_NOT_FOUND;
    }
}

/* ---- pieces */

static void give(uint64_t begin) {
    pthread_mutex_lock(&lock);
    carve_give(&pieces, begin);
    pthread_mutex_unlock(&lock);
}

static uint64_t cut(uint64_t bytes) {
    pthread_mutex_lock(&lock);
    uint64_t begin = carve_take(&pieces, bytes);
    pthread_mutex_unlock(&lock);
    return begin;
}

static void say_once(uint64_t bytes) {
    static atomic_bool said;
    if (!atomic_exchange(&said, true)) {
        standard_error_say(
            "tierline: the next %llu bytes do not fit into the %llu bytes of swapped memory "
            "(TIERLINE_SWAP) and stay on the device; give the task a larger workspace\n",
            (unsigned long long)bytes, (unsigned long long)wanted_bytes);
    }
}

/* A piece for the next object, or 0 if that is to be ordinary memory. A CUresult. */
static int take(uint64_t bytes, uint64_t *begin) {
    struct swap_loan lent = {0};
    *begin = 0;
    if (atomic_load_explicit(&state, memory_order_acquire) == OFF || bytes == 0) {
        return ABI_SUCCESS;
    }
    const void *context = driver_context();
    if (context == NULL) {
        return ABI_SUCCESS; /* the driver's own word for it */
    }
    int result = swap_borrow(&lent);
    if (result != ABI_SUCCESS) {
        return result == ABI_NOT_FOUND ? ABI_SUCCESS : result;
    }
    uint64_t number = atomic_fetch_add(&objects_seen, 1);
    if (context != lent.context || !swap_objects_hold(&objects, number)) {
        return ABI_SUCCESS;
    }
    bool capturing = captures_any(); /* then nothing may be asked of events */
    if (!capturing) {
        late_collect(&lates, give);
    }
    *begin = cut(bytes);
    if (*begin == 0 && !capturing && late_wait(&lates, give)) {
        *begin = cut(bytes);
    }
    if (*begin == 0) {
        say_once(bytes);
        return ABI_SUCCESS;
    }
    struct range range = {.begin = *begin,
                          .bytes = bytes,
                          .kind = RANGE_WORKSPACE,
                          .device = lent.device,
                          .context = lent.context};
    if (!ranges_add(&range)) {
        give(*begin);
        *begin = 0;
    }
    return ABI_SUCCESS;
}

/* ---- what hooks call */

int swap_allocate(cuMemAlloc_v2_function *next, uint64_t *address, size_t bytes) {
    uint64_t begin = 0;
    int result = address == NULL ? (int)ABI_SUCCESS : take(bytes, &begin);
    if (result == ABI_SUCCESS && begin != 0) {
        *address = begin;
        return ABI_SUCCESS;
    }
    return result == ABI_SUCCESS ? next(address, bytes) : result;
}

int swap_allocate_pitch(cuMemAllocPitch_v2_function *next, uint64_t *address, size_t *pitch,
                        size_t width_bytes, size_t height, unsigned int element_bytes) {
    bool sound = address != NULL && pitch != NULL && width_bytes != 0 && height != 0 &&
                 (element_bytes == 4 || element_bytes == 8 || element_bytes == 16) &&
                 width_bytes <= SIZE_MAX - PITCH_BYTES;
    size_t row = sound ? (width_bytes + PITCH_BYTES - 1) / PITCH_BYTES * PITCH_BYTES : 0;
    uint64_t begin = 0;
    int result = sound && row <= SIZE_MAX / height ? take(row * height, &begin) : (int)ABI_SUCCESS;
    if (result == ABI_SUCCESS && begin != 0) {
        *address = begin;
        *pitch = row;
        return ABI_SUCCESS;
    }
    return result == ABI_SUCCESS ? next(address, pitch, width_bytes, height, element_bytes)
                                 : result;
}

int swap_allocate_async(cuMemAllocAsync_function *next, uint64_t *address, size_t bytes,
                        void *stream) {
    uint64_t begin = 0;
    int result = address == NULL ? (int)ABI_SUCCESS : take(bytes, &begin);
    if (result == ABI_SUCCESS && begin != 0) {
        *address = begin;
        return ABI_SUCCESS;
    }
    return result == ABI_SUCCESS ? next(address, bytes, stream) : result;
}

static bool is_devices_own(const void *pool) {
    cuCtxGetDevice_function *ask_device = DRIVER(USED, cuCtxGetDevice);
    cuDeviceGetDefaultMemPool_function *ask_pool = DRIVER(USED, cuDeviceGetDefaultMemPool);
    int device = 0;
    void *own = NULL;
    return ask_device != NULL && ask_pool != NULL && ask_device(&device) == ABI_SUCCESS &&
           ask_pool(&own, device) == ABI_SUCCESS && pool == own;
}

int swap_allocate_from_pool(cuMemAllocFromPoolAsync_function *next, uint64_t *address, size_t bytes,
                            void *pool, void *stream) {
    uint64_t begin = 0;
    int result = address != NULL && swap_wanted_bytes() != 0 && is_devices_own(pool)
                     ? take(bytes, &begin)
                     : (int)ABI_SUCCESS;
    if (result == ABI_SUCCESS && begin != 0) {
        *address = begin;
        return ABI_SUCCESS;
    }
    return result == ABI_SUCCESS ? next(address, bytes, pool, stream) : result;
}

bool swap_holds(uint64_t address) {
    struct range range;
    return ranges_find(address, &range) && range.kind == RANGE_WORKSPACE;
}

static int wait_for(void *context) {
    cuCtxPushCurrent_v2_function *push = DRIVER(USED, cuCtxPushCurrent_v2);
    cuCtxPopCurrent_v2_function *pop = DRIVER(USED, cuCtxPopCurrent_v2);
    cuCtxSynchronize_function *synchronise = DRIVER(USED, cuCtxSynchronize);
    void *popped = NULL;
    if (push == NULL || pop == NULL || synchronise == NULL) {
        return driver_missing();
    }
    int result = push(context);
    if (result == ABI_SUCCESS) {
        result = synchronise();
        pop(&popped);
    }
    return result;
}

int swap_free(cuMemFree_v2_function *next, uint64_t address) {
    struct range range;
    if (!ranges_remove(address, RANGE_WORKSPACE, &range)) {
        return spill_free(next, address);
    }
    int result = wait_for(range.context);
    if (result == ABI_SUCCESS) {
        give(address);
    } else {
        ranges_restore(&range);
    }
    return result;
}

int swap_free_async(cuMemFreeAsync_function *next, uint64_t address, void *stream,
                    bool per_thread) {
    struct range range;
    if (!ranges_remove(address, RANGE_WORKSPACE, &range)) {
        return spill_free_async(next, address, stream, per_thread);
    }
    int result = late_put(&lates, address, range.context, stream, per_thread);
    if (result != ABI_SUCCESS) {
        ranges_restore(&range);
    }
    return result;
}

void swap_peer_enabled(void *peer_context) {
    cuCtxGetDevice_function *ask = DRIVER(USED, cuCtxGetDevice);
    cuMemSetAccess_function *allow = DRIVER(HOOK, cuMemSetAccess);
    int device = 0;
    pthread_mutex_lock(&lock);
    struct swap_loan lent = loan;
    pthread_mutex_unlock(&lock);
    /* No access changes under work that uses it. */
    if (peer_context == lent.context && lent.context != NULL && ask != NULL && allow != NULL &&
        ask(&device) == ABI_SUCCESS && wait_for(lent.context) == ABI_SUCCESS) {
        struct abi_access access = {{ABI_LOCATION_DEVICE, device}, ABI_ACCESS_READ_WRITE};
        (void)allow(lent.base, lent.bytes, &access, 1);
    }
}

uint64_t swap_reach(void) {
    pthread_mutex_lock(&lock);
    uint64_t reach = pieces.bytes == 0 ? 0 : carve_reach(&pieces);
    pthread_mutex_unlock(&lock);
    return reach;
}

/* Without the lock a thread may still free a piece: its range is gone, and the driver answers. */
void swap_forget_context(const void *context) {
    struct range removed;
    pthread_mutex_lock(&lock);
    bool ours = loan.context == context && context != NULL;
    if (ours) {
        for (size_t i = 0; i < pieces.count; i++) {
            (void)ranges_remove(pieces.pieces[i].begin, RANGE_WORKSPACE, &removed);
        }
        carve_end(&pieces);
        pieces.bytes = 0;
        loan = (struct swap_loan){0};
    }
    pthread_mutex_unlock(&lock);
    late_forget(&lates, context);
    if (ours) {
        swap_lender.ended();
        atomic_store(&state, WANTED); /* by the next context */
    }
}

void swap_fork_before(void) {
    pthread_mutex_lock(&borrowing);
    pthread_mutex_lock(&lock);
    pthread_mutex_lock(&lates.lock);
}

void swap_fork_after(bool in_child) {
    pthread_mutex_unlock(&lates.lock);
    if (in_child) {
        carve_end(&pieces);
        pieces.bytes = 0;
        loan = (struct swap_loan){0};
        late_forget(&lates, NULL);
        atomic_store(&state, OFF);
        atomic_store(&objects_seen, 0);
    }
    pthread_mutex_unlock(&lock);
    pthread_mutex_unlock(&borrowing);
}
