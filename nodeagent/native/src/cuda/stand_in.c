/* See stand_in.h. */
#include "cuda/stand_in.h"

#include "cuda/cuda.h"
#include "cuda/upload.h"
#include "wire/error.h"

#include <string.h>

/* Large enough for nine tenths of the link's speed. */
#define PIECE_BYTES (4UL << 20)
static uint8_t *piece;   /* pinned */
static const void *home; /* the context in which it was made */

int tl_stand_in_open(void) {
    if (piece != NULL) {
        return 0;
    }
    home = driver_context();
    int code = tl_upload_open();
    void *pinned = NULL;
    code =
        code == 0
            ? tl_cuda_check(TL_CUDA(HOOK, cuMemHostAlloc, &pinned, PIECE_BYTES, ABI_HOST_PORTABLE),
                            "making pinned memory")
            : code;
    piece = pinned;
    return code;
}

int tl_stand_in_write(const struct tl_arena *arena, uint32_t index, const uint8_t *bytes,
                      uint64_t length) {
    uint64_t slot =
        arena->on_device.slots + (uint64_t)(index % arena->ring_slots) * arena->extent_bytes;
    int code = piece != NULL ? 0
                             : tl_fail(TIERLINE_E_SYSTEM, "copying an extent to the GPU: the CUDA "
                                                          "context for that is gone");
    for (uint64_t done = 0; done < length && code == 0; done += PIECE_BYTES) {
        uint64_t size = length - done < PIECE_BYTES ? length - done : PIECE_BYTES;
        memcpy(piece, bytes + done, size);
        code = tl_upload(slot + done, piece, size);
    }
    return code;
}

void tl_stand_in_context_ended(const void *context) {
    if (home == context) {
        tl_stand_in_forget();
    }
}

void tl_stand_in_forget(void) {
    piece = NULL;
}
