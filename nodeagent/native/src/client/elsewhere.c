/* Calls a function of Python's in a new thread.
 *
 * Python starts threads, too. But until such a thread runs, the number that it goes by is that of
 * the thread that started it: an exception that the program sends to that one by its number
 * (PyThreadState_SetAsyncExc) may end the new one before its first instruction. And the collector
 * runs in whichever thread happens to allocate, so that a finalizer of the program's would run
 * here, and wait for a lock that the program's thread holds while it waits for this one.
 *
 * Invariant: no exception of the program's is raised here, no collection begins here, and `done`
 * is called whatever came of the function.
 */
#include "tierline/tierline.h"

#include <pthread.h>
#include <stdlib.h>

typedef struct {
    tierline_python python; /* the caller's may be gone before the thread is */
    void *turn;
    void *function;
    void *over;
    void *done;
} work;

static void call(const tierline_python *python, void *function) {
    void *result = python->call(function, NULL);
    if (result != NULL) {
        python->drop(result);
    } else {
        python->clear();
    }
}

static void *run(void *context) {
    work given = *(work *)context;
    free(context);
    const tierline_python *python = &given.python;
    int entered = python->enter();
    call(python, given.turn);
    int collects = python->collect_no_more();
    call(python, given.function);
    python->drop(given.function);
    if (collects != 0) {
        python->collect();
    }
    call(python, given.over);
    call(python, given.done);
    python->drop(given.turn);
    python->drop(given.over);
    python->drop(given.done);
    python->leave(entered);
    return NULL;
}

int tierline_elsewhere(const tierline_python *python, void *turn, void *function, void *over,
                       void *done) {
    /* Python 3.12 has one note for all threads that a collection is due. This heeds it, as well as
     * signals, whose handlers may raise. */
    if (python->check() != 0) {
        return TIERLINE_E_SYSTEM;
    }
    work *given = malloc(sizeof(*given));
    if (given == NULL) {
        return TIERLINE_E_SYSTEM;
    }
    *given = (work){*python, turn, function, over, done};
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_t thread;
    /* It cannot begin before the caller gives the interpreter's lock up. */
    int failure = pthread_create(&thread, &attributes, run, given);
    pthread_attr_destroy(&attributes);
    if (failure != 0) {
        free(given);
        return TIERLINE_E_SYSTEM;
    }
    python->keep(turn);
    python->keep(function);
    python->keep(over);
    python->keep(done);
    return 0;
}
