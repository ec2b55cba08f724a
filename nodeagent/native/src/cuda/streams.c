/* See streams.h. */
#include "cuda/streams.h"

#include "cuda/cuda.h"
#include "cuda/stream_marks.h"

#include <stddef.h>
#include <string.h>

#define MOST_STREAMS ((uint32_t)TL_MARKS_OF_READERS)

struct tl_stream {
    struct tl_stream_name name;
    const void *context;
    uint32_t waited; /* `published` is at least this for what comes next */
    uint32_t lowest; /* the first streamed extent that its reads touch */
    uint32_t passed; /* the last value that its mark was told to take */
    bool used;
    bool left;  /* its handle means nothing any more; its mark will be reached */
    bool reads; /* since another stream was ordered after it */
};

static struct tl_stream streams[MOST_STREAMS];
static uint32_t reach; /* places from here on were never used: nearly all, and a job begins often */
static struct tl_stream *writer;

static uint32_t mark_of(const struct tl_stream *stream) {
    return (uint32_t)(stream - streams);
}

static bool passed(const struct tl_stream *stream) {
    return (int32_t)(tl_mark_seen(mark_of(stream)) - stream->passed) >= 0;
}

static struct tl_stream *find(struct tl_stream_name name) {
    for (uint32_t i = 0; i < reach; i++) {
        struct tl_stream *stream = &streams[i];
        if (stream->used && !stream->left && stream->name.handle == name.handle &&
            stream->name.thread == name.thread) {
            return stream;
        }
    }
    return NULL;
}

static bool is_free(const struct tl_stream *stream) {
    return !stream->used || (stream->left && passed(stream));
}

struct tl_stream *tl_stream_of(void *stream, bool per_thread) {
    struct tl_stream_name name = tl_stream_name(stream, per_thread);
    struct tl_stream *found = find(name);
    for (uint32_t i = 0; i < MOST_STREAMS && found == NULL; i++) {
        found = is_free(&streams[i]) && &streams[i] != writer ? &streams[i] : NULL;
    }
    if (found == NULL) {
        /* More streams than places: when all work is over nothing is left to be ordered. */
        if (tl_cuda_synchronise() != ABI_SUCCESS) {
            return NULL;
        }
        tl_streams_forget();
        found = &streams[0];
    }
    if (!found->used || found->left) {
        reach = mark_of(found) >= reach ? mark_of(found) + 1 : reach;
        *found = (struct tl_stream){.used = true,
                                    .name = name,
                                    .context = driver_context(),
                                    .passed = tl_mark_seen(mark_of(found))};
    }
    return found;
}

void tl_streams_restart(void) {
    writer = NULL;
    for (uint32_t i = 0; i < reach; i++) {
        streams[i].used = streams[i].used && !streams[i].left;
        streams[i].waited = 0;
        streams[i].reads = false;
    }
}

static int wait(const struct tl_stream *stream, uint64_t address, uint32_t value) {
    return TL_CUDA(HOOK, cuStreamWaitValue32_v2, stream->name.handle, address, value,
                   ABI_WAIT_AT_LEAST);
}

int tl_stream_wait(struct tl_stream *stream, uint64_t published, uint32_t value) {
    if (stream->waited >= value) {
        return ABI_SUCCESS;
    }
    int result = wait(stream, published, value);
    stream->waited = result == ABI_SUCCESS ? value : stream->waited;
    return result;
}

int tl_stream_stop(const struct tl_stream *stream, const struct tl_stop *stop) {
    struct abi_word_operation list[4] = {
        {.operation = ABI_WRITE_VALUE_32, .address = stop->arrived, .value = stop->number},
        {.operation = ABI_WAIT_VALUE_32, .address = stop->permit, .value = stop->number},
    };
    unsigned int count = 2;
    if (stop->reset != 0) {
        list[count++] =
            (struct abi_word_operation){.operation = ABI_WRITE_VALUE_32, .address = stop->reset};
    }
    if (stream->waited > 0) {
        list[count++] = (struct abi_word_operation){
            .operation = ABI_WAIT_VALUE_32, .address = stop->published, .value = stream->waited};
    }
    return TL_CUDA(HOOK, cuStreamBatchMemOp_v2, stream->name.handle, count, list, 0);
}

void tl_stream_waited(struct tl_stream *stream, uint32_t value) {
    stream->waited = value > stream->waited ? value : stream->waited;
}

void tl_stream_reads(struct tl_stream *stream, uint32_t lowest) {
    stream->lowest = stream->reads && stream->lowest < lowest ? stream->lowest : lowest;
    stream->reads = true;
}

/* Lets the stream's mark take a new value once all that it was given is done. What cannot be named
 * here has been marked when it could: a stream that left, another thread's own default stream. */
static int mark(struct tl_stream *stream) {
    if (stream->left || (stream->name.thread != 0 && stream->name.thread != tl_this_thread())) {
        return ABI_SUCCESS;
    }
    int result = tl_mark_write(stream->name.handle, mark_of(stream), stream->passed + 1);
    stream->passed += result == ABI_SUCCESS;
    return result;
}

int tl_stream_after(struct tl_stream *stream) {
    return stream->name.thread != 0 ? mark(stream) : (int)ABI_SUCCESS;
}

int tl_stream_join(struct tl_stream *stream, uint32_t value) {
    for (uint32_t i = 0; i < reach; i++) {
        struct tl_stream *other = &streams[i];
        bool before = other->used && other != stream &&
                      ((other->reads && other->lowest < value) || other == writer);
        if (!before) {
            continue;
        }
        int result = mark(other);
        result = result == ABI_SUCCESS && !passed(other)
                     ? wait(stream, tl_mark_address(mark_of(other)), other->passed)
                     : result;
        if (result != ABI_SUCCESS) {
            return result;
        }
        other->reads = false;
    }
    stream->reads = false;
    writer = stream;
    return ABI_SUCCESS;
}

int tl_stream_give_back(struct tl_stream *stream, uint64_t consumed, uint32_t value) {
    int result = tl_stream_join(stream, value);
    return result == ABI_SUCCESS
               ? TL_CUDA(HOOK, cuStreamWriteValue32_v2, stream->name.handle, consumed, value, 0)
               : result;
}

void tl_stream_leave(void *stream, bool per_thread) {
    struct tl_stream *found = find(tl_stream_name(stream, per_thread));
    if (found != NULL) {
        mark(found);
        found->left = true;
    }
}

bool tl_streams_idle(void) {
    for (uint32_t i = 0; i < reach; i++) {
        const struct tl_stream *stream = &streams[i];
        if (!stream->used) {
            continue;
        }
        /* Of another thread's own default stream only the thread itself could ask. */
        bool mute = stream->left || stream->name.thread != 0;
        bool over = mute ? passed(stream)
                         : TL_CUDA(USED, cuStreamQuery, stream->name.handle) == ABI_SUCCESS;
        if (!over) {
            return false;
        }
    }
    return true;
}

void tl_streams_context_ended(const void *context) {
    for (uint32_t i = 0; i < reach; i++) {
        if (streams[i].used && streams[i].context == context) {
            streams[i] = (struct tl_stream){0};
            writer = writer == &streams[i] ? NULL : writer;
        }
    }
}

void tl_streams_forget(void) {
    memset(streams, 0, sizeof streams);
    reach = 0;
    writer = NULL;
}
