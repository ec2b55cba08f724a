/* Masks of signals, as programs find them where this library is preloaded.
 *
 * Invariant: no thread of the program blocks SIGSEGV. The kernel kills a process whose thread
 * faults while that is blocked, and a server that blocks every signal and waits for them in one
 * thread would die at the first touch of a weight that is not there.
 *
 * So a mask reaches the kernel without it: one that is set, one that lasts for a call, one that a
 * new thread begins with, and one that the process was started with, here as soon as this library
 * is loaded. What a thread set it reads back, but for two things that nothing depends on: a new
 * thread and a program that is executed begin with SIGSEGV unblocked. A SIGSEGV that somebody sends
 * (`kill`) does not wait, either.
 *
 * Where the kernel itself blocks it, in a handler of SIGSEGV, it stays so: a handler that faults
 * must not call itself for ever.
 *
 * Sanitized builds leave this file out, as they do signals.c. No lock is taken and nothing
 * allocated: a signal handler may change its mask.
 */
#undef _FORTIFY_SOURCE /* ppoll is defined here */
#include "libc/around.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <time.h>

/* This thread has set a mask with SIGSEGV. */
static _Thread_local bool wished;

static bool has(const sigset_t *mask) {
    return mask != NULL && sigismember(mask, SIGSEGV) == 1;
}

/* `mask`, or if it has SIGSEGV a copy of it that has not. */
static const sigset_t *without(const sigset_t *mask, sigset_t *copy) {
    if (!has(mask)) {
        return mask;
    }
    *copy = *mask;
    sigdelset(copy, SIGSEGV);
    return copy;
}

typedef int mask_call(int how, const sigset_t *mask, sigset_t *before);

static int change(mask_call *next, int how, const sigset_t *mask, sigset_t *before) {
    sigset_t copy;
    sigset_t found;
    bool named = has(mask); /* `before` may be the same memory */
    bool changed = mask != NULL;
    int failed = next(how, how == SIG_UNBLOCK ? mask : without(mask, &copy), &found);
    if (failed != 0) {
        return failed;
    }
    bool kernels = has(&found);
    if (kernels && named && how == SIG_SETMASK) {
        sigset_t only;
        sigemptyset(&only);
        sigaddset(&only, SIGSEGV);
        (void)next(SIG_BLOCK, &only, NULL);
    }
    bool was = wished;
    if (changed && how == SIG_SETMASK) {
        wished = named && !kernels;
    } else if (changed && named) {
        wished = how == SIG_BLOCK && !kernels;
    }
    if (before != NULL) {
        *before = found;
        if (was) {
            sigaddset(before, SIGSEGV);
        }
    }
    return 0;
}

/* Parameters have names of ours.
 * NOLINTBEGIN(readability-inconsistent-declaration-parameter-name) */

#define CHANGED(name)                                                                              \
    AROUND(int, name, (int how, const sigset_t *mask, sigset_t *before),                           \
           return change(next, how, mask, before);)
CHANGED(pthread_sigmask)
CHANGED(sigprocmask)

/* Of a new thread. */
AROUND(int, pthread_attr_setsigmask_np, (pthread_attr_t * attributes, const sigset_t *mask),
       return next(attributes, without(mask, &(sigset_t){0}));)

/* Those of a call. A handler that runs within it may read weights. */
AROUND(int, sigsuspend, (const sigset_t *mask), return next(without(mask, &(sigset_t){0}));)
AROUND(int, ppoll,
       (struct pollfd * polled, nfds_t count, const struct timespec *timeout, const sigset_t *mask),
       return next(polled, count, timeout, without(mask, &(sigset_t){0}));)
AROUND(int, pselect,
       (int count, fd_set *to_read, fd_set *to_write, fd_set *failed,
        const struct timespec *timeout, const sigset_t *mask),
       return next(count, to_read, to_write, failed, timeout, without(mask, &(sigset_t){0}));)
AROUND(int, epoll_pwait,
       (int epoll, struct epoll_event *events, int count, int timeout_ms, const sigset_t *mask),
       return next(epoll, events, count, timeout_ms, without(mask, &(sigset_t){0}));)
AROUND(int, epoll_pwait2,
       (int epoll, struct epoll_event *events, int count, const struct timespec *timeout,
        const sigset_t *mask),
       return next(epoll, events, count, timeout, without(mask, &(sigset_t){0}));)

/* As fortified programs call ppoll.
 * NOLINTBEGIN(bugprone-reserved-identifier,readability-identifier-naming) */
int __ppoll_chk(struct pollfd *polled, nfds_t count, const struct timespec *timeout,
                const sigset_t *mask, size_t room);
AROUND(int, __ppoll_chk,
       (struct pollfd * polled, nfds_t count, const struct timespec *timeout, const sigset_t *mask,
        size_t room),
       return next(polled, count, timeout, without(mask, &(sigset_t){0}), room);)
/* NOLINTEND(bugprone-reserved-identifier,readability-identifier-naming)
 * NOLINTEND(readability-inconsistent-declaration-parameter-name) */

/* The thread that loads this library, which for a preloaded one is the only one. What it was
 * started with is what it wished. */
__attribute__((constructor)) static void unblock(void) {
    sigset_t only;
    sigset_t before;
    sigemptyset(&only);
    sigaddset(&only, SIGSEGV);
    if (pthread_sigmask(SIG_UNBLOCK, &only, &before) == 0) {
        wished = has(&before);
    }
}
