/* The mask of signals by the kernel, whatever masks.c makes of it for programs. */
#ifndef TIERLINE_KERNEL_MASK_H
#define TIERLINE_KERNEL_MASK_H

#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

static inline void tl_kernel_mask(int how, const sigset_t *mask, sigset_t *before) {
    (void)syscall(SYS_rt_sigprocmask, how, mask, before, (size_t)_NSIG / 8);
}

/* Holds all signals back: a handler may ask for a lock that this thread has. */
static inline void tl_kernel_mask_all(sigset_t *kept) {
    sigset_t all;
    sigfillset(&all);
    tl_kernel_mask(SIG_SETMASK, &all, kept);
}

#endif
