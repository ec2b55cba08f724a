/* See copies.h. Gaps between rows count as read: a row's neighbour in the same extents is what the
 * copy waits for anyway, and a weight that lies in a gap costs a wait at most. */
#include "launches/copies.h"

#include <stdlib.h>

static struct observer_range span(uint64_t begin, uint64_t pitch, uint64_t slice, uint64_t width,
                                  uint64_t height, uint64_t depth) {
    struct observer_range range = {0};
    if (width > 0 && height > 0 && depth > 0) {
        range.address = begin;
        range.bytes = width + (height - 1) * pitch + (depth - 1) * slice;
    }
    return range;
}

static bool by_address(int type) {
    return type == ABI_MEMORY_DEVICE || type == ABI_MEMORY_UNIFIED;
}

struct observer_range copies_source(const struct abi_copy3d *copy) {
    if (!by_address(copy->source_type)) {
        return (struct observer_range){0};
    }
    uint64_t slice = (uint64_t)copy->source_pitch * copy->source_height;
    uint64_t begin = copy->source + copy->source_x + copy->source_y * copy->source_pitch +
                     copy->source_z * slice;
    return span(begin, copy->source_pitch, slice, copy->width, copy->height, copy->depth);
}

int observer_copy2d(struct tierline_call *call, const void *described) {
    const struct abi_copy2d *copy = described;
    struct observer_range read = {0};
    if (copy != NULL && by_address(copy->source_type)) {
        read = span(copy->source + copy->source_x + copy->source_y * copy->source_pitch,
                    copy->source_pitch, 0, copy->width, copy->height, 1);
    }
    return observer_copy(call, read.address, read.bytes);
}

int observer_copy3d(struct tierline_call *call, const void *described) {
    const struct abi_copy3d *copy = described;
    struct observer_range read = {0};
    if (copy != NULL) {
        read = copies_source(copy);
    }
    return observer_copy(call, read.address, read.bytes);
}

/* Lengths of 0 are those of the copy itself. */
static struct observer_range source_of(const struct abi_copy_operation *operation) {
    const struct abi_copy_operand *from = &operation->source;
    if (from->type != ABI_OPERAND_POINTER) {
        return (struct observer_range){0};
    }
    uint64_t pitch = from->row != 0 ? from->row : operation->width;
    uint64_t rows = from->layer != 0 ? from->layer : operation->height;
    return span(from->address, pitch, pitch * rows, operation->width, operation->height,
                operation->depth);
}

/* What the nth of a list's operations reads. */
typedef struct observer_range source_at(const void *list, size_t n);

static int show_each(struct tierline_call *call, const void *list, size_t count, source_at *read) {
    if (!observer_watching() || list == NULL || count == 0) {
        return observer_copies(call, NULL, NULL, 0);
    }
    uint64_t *sources = calloc(count, sizeof *sources);
    size_t *bytes = calloc(count, sizeof *bytes);
    int verdict = ABI_OUT_OF_MEMORY;
    if (sources != NULL && bytes != NULL) {
        for (size_t i = 0; i < count; i++) {
            struct observer_range range = read(list, i);
            sources[i] = range.address;
            bytes[i] = range.bytes;
        }
        verdict = observer_copies(call, sources, bytes, count);
    }
    free(sources);
    free(bytes);
    return verdict;
}

static struct observer_range copy_at(const void *list, size_t n) {
    return source_of((const struct abi_copy_operation *)list + n);
}

int observer_copies3d(struct tierline_call *call, const void *described, size_t count) {
    return show_each(call, described, count, copy_at);
}

/* Only waits read; a weight is never written. */
static struct observer_range word_at(const void *list, size_t n) {
    const struct abi_word_operation *operation = (const struct abi_word_operation *)list + n;
    struct observer_range read = {.address = operation->address};
    read.bytes = operation->operation == ABI_WAIT_VALUE_32 ? 4 : 0;
    read.bytes = operation->operation == ABI_WAIT_VALUE_64 ? 8 : read.bytes;
    return read;
}

int observer_words(struct tierline_call *call, const void *described, unsigned int count) {
    return show_each(call, described, count, word_at);
}
