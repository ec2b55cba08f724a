/* See stream_marks.h. */
#include "cuda/stream_marks.h"

#include "cuda/cuda.h"
#include "tierline/tierline.h"
#include "wire/error.h"

#include <stdatomic.h>
#include <stddef.h>
#include <sys/mman.h>

#define PAGES_BYTES 8192U
_Static_assert(TL_MARKS * sizeof(uint32_t) == PAGES_BYTES, "words of whole pages");

static uint32_t *words;
static uint64_t words_address; /* 0: no context can write them */
static const void *home;       /* the context in which they were registered */
static atomic_uint_fast64_t threads;
static _Thread_local uint64_t this_thread;

uint64_t tl_this_thread(void) {
    if (this_thread == 0) {
        this_thread = atomic_fetch_add(&threads, 1) + 1;
    }
    return this_thread;
}

struct tl_stream_name tl_stream_name(void *stream, bool per_thread) {
    uintptr_t number = per_thread ? ABI_THREAD_STREAM : ABI_LEGACY_STREAM;
    void *handle = stream != NULL ? stream : (void *)number; /* NOLINT(performance-no-int-to-ptr) */
    bool own = (uintptr_t)handle == ABI_THREAD_STREAM;
    return (struct tl_stream_name){handle, own ? tl_this_thread() : 0};
}

int tl_marks_open(void) {
    if (words_address != 0) {
        return 0;
    }
    if (words == NULL) {
        void *page =
            mmap(NULL, PAGES_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (page == MAP_FAILED) {
            return tl_fail(TIERLINE_E_NO_MEMORY, "making pages of flag words: out of memory");
        }
        /* The GPU writes these very pages: they must not become a child's. */
        madvise(page, PAGES_BYTES, MADV_DONTFORK);
        words = page;
    }
    home = driver_context();
    int code = tl_cuda_check(TL_CUDA(HOOK, cuMemHostRegister_v2, words, PAGES_BYTES,
                                     ABI_HOST_PORTABLE | ABI_HOST_MAPPED),
                             "registering flag words");
    return code == 0 ? tl_cuda_check(
                           TL_CUDA(USED, cuMemHostGetDevicePointer_v2, &words_address, words, 0),
                           "addressing flag words")
                     : code;
}

void tl_marks_context_ended(const void *context) {
    if (home == context) {
        words_address = 0;
    }
}

void tl_marks_forget(void) {
    words = NULL;
    words_address = 0;
}

uint64_t tl_mark_address(uint32_t index) {
    return words_address + index * sizeof *words;
}

uint32_t tl_mark_seen(uint32_t index) {
    return words == NULL ? 0 : __atomic_load_n(&words[index], __ATOMIC_SEQ_CST);
}

void tl_mark_set(uint32_t index, uint32_t value) {
    if (words != NULL) {
        __atomic_store_n(&words[index], value, __ATOMIC_SEQ_CST);
    }
}

int tl_mark_write(void *handle, uint32_t index, uint32_t value) {
    return words_address == 0
               ? (int)ABI_INVALID_CONTEXT
               : TL_CUDA(HOOK, cuStreamWriteValue32_v2, handle, tl_mark_address(index), value, 0);
}
