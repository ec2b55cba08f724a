/* The CUDA driver, as the client library calls it: past the hooks, so that nothing of its own is
 * gated, counted or charged. There is no link-time dependency; a function that the driver lacks
 * answers CUDA_ERROR_NOT_FOUND.
 */
#ifndef TIERLINE_CUDA_H
#define TIERLINE_CUDA_H

#include "driver/driver.h"

#include <stdbool.h>
#include <stdint.h>

/* HOOK_ or USED_ stands before the function's name in the interposer's table. */
#define TL_CUDA(table, name, ...)                                                                  \
    (driver_next(table##_##name) == NULL                                                           \
         ? (int)ABI_NOT_FOUND                                                                      \
         : ((name##_function *)driver_next(table##_##name))(__VA_ARGS__))

/* 0, or TIERLINE_E_SYSTEM with "<what>: CUDA answered <name>". */
int tl_cuda_check(int result, const char *what);

/* Makes a context current; tl_cuda_leave takes it away again. */
bool tl_cuda_enter(void *context);
void tl_cuda_leave(void);

/* Allows calls that another thread's capture of a stream would forbid. */
void tl_cuda_relax(int *mode);
void tl_cuda_restore(int *mode);

/* Waits for all work of the current context. A CUresult; CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
 * without asking the driver while a stream is captured, since the question would end the capture.
 */
int tl_cuda_synchronise(void);

#endif
