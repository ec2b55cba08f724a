/* Memory that the program freed in stream order: it is given back once its stream got there.
 *
 * Each piece waits in a list with an event after its free. Nothing watches the list; the module
 * that has one collects from it now and then.
 */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

struct late;

struct late_list {
    pthread_mutex_t lock;
    struct late *first;
};
#define LATE_LIST_INITIALIZER                                                                      \
    { PTHREAD_MUTEX_INITIALIZER, NULL }

/* What becomes of a piece whose stream got there. */
typedef void late_give(uint64_t address);

/* Marks everything that the stream was given so far, and notes the piece. A CUresult. */
int late_put(struct late_list *list, uint64_t address, void *context, void *stream,
             bool per_thread);
/* Gives back what can be by now. */
void late_collect(struct late_list *list, late_give *give);
/* Waits for all of them; false if there was none. */
bool late_wait(struct late_list *list, late_give *give);
/* A context has ended, its events with it: its pieces are forgotten; those of all for NULL. */
void late_forget(struct late_list *list, const void *context);
