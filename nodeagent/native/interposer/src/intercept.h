/* dlsym, as this library finds it and as programs find this library's. */
#pragma once

/* The dlsym behind this one: another interposer's, or the C library's. NULL when there is none. */
typedef void *intercept_dlsym(void *handle, const char *name);
intercept_dlsym *intercept_next(void);

/* What dlsym does with a call: an answer, or a function to go on to with the same arguments. */
struct intercept_verdict {
    void *answer;
    intercept_dlsym *go_on;
};
struct intercept_verdict tierline_intercept_decide(void *handle, const char *name);
