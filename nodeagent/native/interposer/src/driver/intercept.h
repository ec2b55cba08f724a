/* dlsym, as this library finds it and as programs find this library's. */
#pragma once

#include <stdbool.h>

/* The dlsym after this one: another interposer's, or the C library's. NULL when there is none. */
typedef void *intercept_dlsym(void *handle, const char *name);
intercept_dlsym *intercept_next(void);

/* The C library's own dlsym. */
intercept_dlsym *intercept_last(void);

/* Whether an address lies in the library that owns a hooked function. */
bool intercept_is_owners(int function, const void *address);

/* What dlsym does with a call: an answer, or a function to go on to with the same arguments. */
struct intercept_verdict {
    void *answer;
    intercept_dlsym *go_on;
};
struct intercept_verdict tierline_intercept_decide(void *handle, const char *name);
