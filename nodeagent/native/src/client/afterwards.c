/* Calls a function of Python's and then, whatever came of it, those that give back what it took.
 *
 * Python runs handlers of signals, asynchronous exceptions and tracers between any two of its own
 * instructions, so no `finally` written in Python is sure to run. Here is none between the end of
 * the function and what gives back, nor within that, if it is written in C.
 */
#include "tierline/tierline.h"

#include <stddef.h>

/* Each may say no, as where nothing was taken. */
static void give_back(const tierline_python *python, void *taken) {
    for (int64_t i = python->size(taken); i-- > 0;) {
        void *item = python->item(taken, i);
        void *result = item != NULL ? python->call(item, NULL) : NULL;
        if (result != NULL) {
            python->drop(result);
        } else {
            python->clear();
        }
    }
}

static void *end(const tierline_python *python, void *result, void *taken) {
    void *type = NULL;
    void *value = NULL;
    void *trace = NULL;
    python->fetch(&type, &value, &trace);
    give_back(python, taken);
    python->restore(type, value, trace);
    return result;
}

void *tierline_afterwards(const tierline_python *python, void *function, void *arguments,
                          void *taken, int if_raised) {
    void *result = python->call(function, arguments);
    return result != NULL && if_raised != 0 ? result : end(python, result, taken);
}

void *tierline_exit(const tierline_python *python, void *function, void *taken, void *kind,
                    void *error, void *trace) {
    return end(python, python->call_with(function, kind, error, trace, NULL), taken);
}
