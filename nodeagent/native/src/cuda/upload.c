/* See upload.h. */
#include "cuda/upload.h"

#include "cuda/cuda.h"
#include "tierline/tierline.h"
#include "wire/error.h"

#include <stddef.h>

/* The driver takes the highest that there is. Streams of one priority share a few queues of the
 * device, so an ordinary stream may be queued after what waits for these bytes; programs seldom use
 * the highest. */
#define HIGHEST_PRIORITY (-1000)

static void *stream;
static void *home; /* the context in which it was made */

static struct {
    void *memory; /* NULL: none */
    uint32_t generation;
} pinned;

int tl_upload_open(void) {
    if (stream != NULL) {
        return 0;
    }
    int code =
        tl_cuda_check(TL_CUDA(USED, cuCtxGetCurrent, &home), "asking for the current context");
    return code == 0 ? tl_cuda_check(TL_CUDA(USED, cuStreamCreateWithPriority, &stream,
                                             ABI_NON_BLOCKING, HIGHEST_PRIORITY),
                                     "making a stream")
                     : code;
}

int tl_upload(uint64_t to, const void *from, uint64_t bytes) {
    if (stream == NULL) {
        return tl_fail(TIERLINE_E_SYSTEM, "copying an extent to the GPU: the CUDA context for that "
                                          "is gone");
    }
    int code = tl_cuda_check(TL_CUDA(HOOK, cuMemcpyHtoDAsync_v2, to, from, bytes, stream),
                             "copying an extent to the GPU");
    int waited =
        tl_cuda_check(TL_CUDA(USED, cuStreamSynchronize, stream), "waiting for a copy to the GPU");
    return code == 0 ? waited : code;
}

void tl_upload_pin(void *memory, uint64_t bytes, uint32_t generation) {
    if (pinned.memory == memory && pinned.generation == generation) {
        return;
    }
    tl_upload_unpin(pinned.memory);
    if (stream != NULL &&
        TL_CUDA(HOOK, cuMemHostRegister_v2, memory, bytes, ABI_HOST_PORTABLE) == ABI_SUCCESS) {
        pinned.memory = memory;
    }
    pinned.generation = generation;
}

void tl_upload_unpin(const void *memory) {
    if (pinned.memory == NULL || pinned.memory != memory) {
        return;
    }
    if (tl_cuda_enter(home)) {
        TL_CUDA(HOOK, cuMemHostUnregister, pinned.memory);
        tl_cuda_leave();
    }
    pinned.memory = NULL;
}

void tl_upload_context_ended(const void *context) {
    if (home == context) {
        tl_upload_forget();
    }
}

void tl_upload_forget(void) {
    stream = NULL;
    pinned.memory = NULL;
}
