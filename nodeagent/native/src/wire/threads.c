/* See threads.h. */
#include "wire/threads.h"

#include "tierline/tierline.h"
#include "wire/error.h"

#include <signal.h>
#include <string.h>

int tl_thread_start(pthread_t *thread, void *(*run)(void *), void *context, const char *what) {
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failure = pthread_create(thread, NULL, run, context);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return failure == 0 ? 0
                        : tl_fail(TIERLINE_E_SYSTEM, "starting the thread that %s: %s", what,
                                  strerror(failure));
}
