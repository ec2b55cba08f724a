/* See words.h. The kernel compares the word again before it sleeps, so a publish between the
 * load and the wait is never missed. */
#include "wire/words.h"

#include "tierline/tierline.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define SECOND_NS 1000000000ULL
#define LONGEST_WAIT_NS (3600 * SECOND_NS)

uint64_t tl_now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * SECOND_NS + (uint64_t)now.tv_nsec;
}

void tl_futex_wait(const uint32_t *word, uint32_t seen, uint64_t timeout_ns, bool shared) {
    struct timespec timeout = {.tv_sec = (time_t)(timeout_ns / SECOND_NS),
                               .tv_nsec = (long)(timeout_ns % SECOND_NS)};
    int operation = shared ? FUTEX_WAIT : FUTEX_WAIT | FUTEX_PRIVATE_FLAG;
    syscall(SYS_futex, word, operation, seen, timeout_ns == TL_FOREVER ? NULL : &timeout, NULL, 0);
}

void tl_futex_wake_all(const uint32_t *word, bool shared) {
    int operation = shared ? FUTEX_WAKE : FUTEX_WAKE | FUTEX_PRIVATE_FLAG;
    syscall(SYS_futex, word, operation, INT_MAX, NULL, NULL, 0);
}

bool tl_lock_try(struct tl_lock *lock) {
    uint32_t seen = 0;
    return __atomic_compare_exchange_n(&lock->word, &seen, 1, false, __ATOMIC_ACQUIRE,
                                       __ATOMIC_RELAXED);
}

void tl_lock_acquire(struct tl_lock *lock) {
    if (tl_lock_try(lock)) {
        return;
    }
    while (__atomic_exchange_n(&lock->word, 2, __ATOMIC_ACQUIRE) != 0) {
        tl_futex_wait(&lock->word, 2, TL_FOREVER, false);
    }
}

bool tl_lock_acquire_within(struct tl_lock *lock, uint64_t patience_ns) {
    struct timespec step = {.tv_nsec = 1000000};
    uint64_t end_ns = tl_now_ns() + patience_ns;
    bool taken = tl_lock_try(lock);
    while (!taken && tl_now_ns() < end_ns) {
        nanosleep(&step, NULL);
        taken = tl_lock_try(lock);
    }
    return taken;
}

void tl_lock_release(struct tl_lock *lock) {
    if (__atomic_exchange_n(&lock->word, 0, __ATOMIC_RELEASE) == 2) {
        tl_futex_wake_all(&lock->word, false);
    }
}

void tl_event_announce(struct tl_event *event) {
    __atomic_add_fetch(&event->count, 1, __ATOMIC_RELEASE);
    if (event->waiting > 0) {
        tl_futex_wake_all(&event->count, false);
    }
}

void tl_event_wait(struct tl_event *event, struct tl_lock *lock, uint64_t timeout_ns) {
    uint32_t seen = __atomic_load_n(&event->count, __ATOMIC_ACQUIRE);
    event->waiting++;
    tl_lock_release(lock);
    tl_futex_wait(&event->count, seen, timeout_ns, false);
    tl_lock_acquire(lock);
    event->waiting--;
}

int tierline_word_wait(const uint32_t *word, uint32_t at_least, uint64_t timeout_ns) {
    uint32_t seen = __atomic_load_n(word, __ATOMIC_ACQUIRE);
    if (seen >= at_least) {
        return 0;
    }
    uint64_t allowed_ns = timeout_ns < LONGEST_WAIT_NS ? timeout_ns : LONGEST_WAIT_NS;
    uint64_t end_ns = tl_now_ns() + allowed_ns;
    while (seen < at_least) {
        uint64_t now_ns = tl_now_ns();
        if (now_ns >= end_ns) {
            return TIERLINE_E_TIMEOUT;
        }
        tl_futex_wait(word, seen, end_ns - now_ns, true);
        seen = __atomic_load_n(word, __ATOMIC_ACQUIRE);
    }
    return 0;
}

void tierline_word_publish(uint32_t *word, uint32_t value) {
    __atomic_store_n(word, value, __ATOMIC_RELEASE);
    tl_futex_wake_all(word, true);
}
