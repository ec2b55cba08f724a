/* See late.h. No driver call is made under the lock. */
#include "memory/late.h"

#include <stdlib.h>

#include "driver/abi.h"
#include "driver/driver.h"
#include "launches/captures.h"

struct late {
    struct late *next;
    uint64_t address;
    void *context;
    void *event;
};

static void put(struct late_list *list, struct late *late) {
    pthread_mutex_lock(&list->lock);
    late->next = list->first;
    list->first = late;
    pthread_mutex_unlock(&list->lock);
}

static struct late *take_all(struct late_list *list) {
    pthread_mutex_lock(&list->lock);
    struct late *all = list->first;
    list->first = NULL;
    pthread_mutex_unlock(&list->lock);
    return all;
}

/* An event after everything that the stream was given so far. */
static int mark(void *stream, bool per_thread, void **event) {
    cuEventCreate_function *create = DRIVER(USED, cuEventCreate);
    cuEventDestroy_v2_function *destroy = DRIVER(USED, cuEventDestroy_v2);
    cuEventRecord_function *record =
        per_thread ? (cuEventRecord_function *)DRIVER(USED, cuEventRecord_ptsz)
                   : DRIVER(USED, cuEventRecord);
    if (create == NULL || destroy == NULL || record == NULL || captures_now(stream, per_thread)) {
        return ABI_INVALID_VALUE; /* the graph does not own this memory: the driver's answer, too */
    }
    int result = create(event, ABI_EVENT_NO_TIMING);
    if (result == ABI_SUCCESS) {
        result = record(*event, stream);
        if (result != ABI_SUCCESS) {
            destroy(*event);
        }
    }
    return result;
}

int late_put(struct late_list *list, uint64_t address, void *context, void *stream,
             bool per_thread) {
    struct late *late = malloc(sizeof *late);
    void *event = NULL;
    int result = late == NULL ? (int)ABI_OUT_OF_MEMORY : mark(stream, per_thread, &event);
    if (result != ABI_SUCCESS) {
        free(late);
        return result;
    }
    *late = (struct late){.address = address, .context = context, .event = event};
    put(list, late);
    return ABI_SUCCESS;
}

/* Asks `reached` of each event, which is cuEventQuery or cuEventSynchronize. */
static bool go_through(struct late_list *list, late_give *give, cuEventQuery_function *reached) {
    cuEventDestroy_v2_function *destroy = DRIVER(USED, cuEventDestroy_v2);
    struct late *all = take_all(list);
    bool any = all != NULL;
    while (all != NULL) {
        struct late *late = all;
        all = late->next;
        if (reached != NULL && destroy != NULL && reached(late->event) == ABI_SUCCESS) {
            destroy(late->event);
            give(late->address);
            free(late);
        } else {
            put(list, late);
        }
    }
    return any;
}

void late_collect(struct late_list *list, late_give *give) {
    (void)go_through(list, give, DRIVER(USED, cuEventQuery));
}

bool late_wait(struct late_list *list, late_give *give) {
    return go_through(list, give, DRIVER(USED, cuEventSynchronize));
}

void late_forget(struct late_list *list, const void *context) {
    pthread_mutex_lock(&list->lock);
    for (struct late **link = &list->first; *link != NULL;) {
        struct late *late = *link;
        if (context == NULL || late->context == context) {
            *link = late->next;
            free(late);
        } else {
            link = &late->next;
        }
    }
    pthread_mutex_unlock(&list->lock);
}
