/* Waiting on 32-bit words: flag words shared between processes, and the library's own lock.
 *
 * Invariant: no call here takes a lock or allocates, so all of it may run in a signal handler.
 */
#ifndef TIERLINE_WORDS_H
#define TIERLINE_WORDS_H

#include <stdbool.h>
#include <stdint.h>

#define TL_FOREVER UINT64_MAX

/* CLOCK_MONOTONIC in nanoseconds. */
uint64_t tl_now_ns(void);

/* Sleeps while *word == seen, until woken, a signal, or timeout_ns (TL_FOREVER: no limit). */
void tl_futex_wait(const uint32_t *word, uint32_t seen, uint64_t timeout_ns, bool shared);
void tl_futex_wake_all(const uint32_t *word, bool shared);

/* A mutex of one word that any thread may release; 0 free, 1 held, 2 held and waited for. */
struct tl_lock {
    uint32_t word;
};
void tl_lock_acquire(struct tl_lock *lock);
bool tl_lock_try(struct tl_lock *lock);
/* Gives up after so long; looks once a millisecond. */
bool tl_lock_acquire_within(struct tl_lock *lock, uint64_t patience_ns);
void tl_lock_release(struct tl_lock *lock);

/* A change counter: read `count`, drop the lock, wait for another count. */
struct tl_event {
    uint32_t count;
    uint32_t waiting;
};
/* Both are called with `lock` held; wait releases it while it sleeps. */
void tl_event_announce(struct tl_event *event);
void tl_event_wait(struct tl_event *event, struct tl_lock *lock, uint64_t timeout_ns);

#endif
