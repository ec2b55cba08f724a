/* See cuda.h. */
#include "cuda/cuda.h"

#include "launches/captures.h"
#include "tierline/tierline.h"
#include "wire/error.h"

#include <stddef.h>

int tl_cuda_check(int result, const char *what) {
    if (result == ABI_SUCCESS) {
        return 0;
    }
    const char *name = NULL;
    if (TL_CUDA(USED, cuGetErrorName, result, &name) != ABI_SUCCESS || name == NULL) {
        return tl_fail(TIERLINE_E_SYSTEM, "%s: CUDA answered error %d", what, result);
    }
    return tl_fail(TIERLINE_E_SYSTEM, "%s: CUDA answered %s", what, name);
}

bool tl_cuda_enter(void *context) {
    return TL_CUDA(USED, cuCtxPushCurrent_v2, context) == ABI_SUCCESS;
}

void tl_cuda_leave(void) {
    void *popped = NULL;
    TL_CUDA(USED, cuCtxPopCurrent_v2, &popped);
}

void tl_cuda_relax(int *mode) {
    *mode = ABI_CAPTURE_RELAXED;
    TL_CUDA(USED, cuThreadExchangeStreamCaptureMode, mode);
}

void tl_cuda_restore(int *mode) {
    TL_CUDA(USED, cuThreadExchangeStreamCaptureMode, mode);
}

int tl_cuda_synchronise(void) {
    return captures_any() ? (int)ABI_CAPTURE_UNSUPPORTED : TL_CUDA(USED, cuCtxSynchronize);
}
