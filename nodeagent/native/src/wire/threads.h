/* Threads of this library's own in somebody else's program. */
#ifndef TIERLINE_THREADS_H
#define TIERLINE_THREADS_H

#include <pthread.h>

/* Starts a thread to which no signal of the program's is delivered; `what` it does is for the
 * error. 0 or TIERLINE_E_SYSTEM. */
int tl_thread_start(pthread_t *thread, void *(*run)(void *), void *context, const char *what);

#endif
