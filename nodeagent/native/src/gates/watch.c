/* See watch.h. Here is also the call that says what the weights of an arena are.
 *
 * A call names weights by indexes that were found before it came to the gates' lock; another thread
 * may have sealed an arena meanwhile. So the tables of earlier generations stay: arenas are sealed
 * a few times in a process's life.
 */
#include "gates/watch.h"

#include "launches/observer.h"

#include <stdlib.h>
#include <string.h>

struct table {
    struct table *older;
    uint64_t generation; /* from this one on */
    uint32_t count;
    struct tl_watched weights[];
};

static struct table *newest; /* only ever grows at its head, so that it is read without a lock */

static uint32_t weights_of(const tierline_client *client, uint32_t sealed, uint32_t index) {
    return (sealed >> index & 1U) != 0 ? client->arenas[index].on_device.weight_count : 0;
}

int tl_watch_show(const tierline_client *client, uint32_t sealed) {
    uint32_t count = 0;
    for (uint32_t a = 0; a < TIERLINE_MAX_ARENAS; a++) {
        count += weights_of(client, sealed, a);
    }
    struct table *table = calloc(1, sizeof *table + count * sizeof *table->weights);
    tierline_weight *ranges = calloc(count + 1U, sizeof *ranges);
    if (table == NULL || ranges == NULL) {
        free(table);
        free(ranges);
        return tl_fail(TIERLINE_E_NO_MEMORY, "watching %u weights: out of memory", count);
    }
    for (uint32_t a = 0; a < TIERLINE_MAX_ARENAS; a++) {
        const struct tl_arena *arena = &client->arenas[a];
        for (uint32_t w = 0; w < weights_of(client, sealed, a); w++) {
            const struct tl_weight *weight = &arena->on_device.weights[w];
            ranges[table->count] =
                (tierline_weight){.address = (uint64_t)(uintptr_t)arena->base + weight->offset,
                                  .bytes = weight->bytes};
            table->weights[table->count++] = (struct tl_watched){.arena = a, .weight = w};
        }
    }
    int result = observer_watch_own(ranges, count, &table->generation);
    free(ranges);
    if (result != 0) {
        free(table);
        return tl_fail(TIERLINE_E_ARGUMENT, "watching %u weights: %s", count, strerror(-result));
    }
    table->older = newest;
    __atomic_store_n(&newest, table, __ATOMIC_RELEASE);
    return 0;
}

const struct tl_watched *tl_watch_find(uint64_t generation, uint32_t weight) {
    const struct table *table = __atomic_load_n(&newest, __ATOMIC_ACQUIRE);
    while (table != NULL && table->generation > generation) {
        table = table->older;
    }
    return table != NULL && weight < table->count ? &table->weights[weight] : NULL;
}

void tl_watch_forget(void) {
    while (newest != NULL) {
        struct table *older = newest->older;
        free(newest);
        newest = older;
    }
}

static int check_range(const struct tl_arena *arena, const tierline_weight_range *range) {
    if (range->bytes == 0 || range->offset >= arena->weight_bytes ||
        range->bytes > arena->weight_bytes - range->offset) {
        return tl_fail(TIERLINE_E_ARGUMENT,
                       "naming weights: %llu bytes at %llu do not lie in an arena of %llu bytes",
                       (unsigned long long)range->bytes, (unsigned long long)range->offset,
                       (unsigned long long)arena->weight_bytes);
    }
    return 0;
}

int tierline_weights(tierline_client *client, uint32_t index, const tierline_weight_range *ranges,
                     uint32_t count) {
    int code = tl_check_usable(client);
    if (code != 0) {
        return code;
    }
    if (client->device != TIERLINE_DEVICE_CUDA || index >= TIERLINE_MAX_ARENAS ||
        (ranges == NULL && count > 0)) {
        return tl_fail(TIERLINE_E_ARGUMENT,
                       "naming weights of arena %u: it is not one of a client on a GPU", index);
    }
    struct tl_weight *weights = calloc(count + 1U, sizeof *weights);
    if (weights == NULL) {
        return tl_fail(TIERLINE_E_NO_MEMORY, "naming %u weights: out of memory", count);
    }
    tl_lock_acquire(&client->lock);
    struct tl_arena *arena = &client->arenas[index];
    if (arena->state != TL_ARENA_LOADING) {
        code =
            tl_fail(TIERLINE_E_STATE, "naming weights of arena %u: it is not being loaded", index);
    }
    for (uint32_t w = 0; w < count && code == 0; w++) {
        code = check_range(arena, &ranges[w]);
        uint64_t last = code == 0 ? ranges[w].offset + ranges[w].bytes - 1 : 0;
        weights[w] =
            (struct tl_weight){.offset = ranges[w].offset,
                               .bytes = ranges[w].bytes,
                               .first = (uint32_t)(ranges[w].offset / client->terms.extent_bytes),
                               .last = (uint32_t)(last / client->terms.extent_bytes)};
    }
    if (code == 0) {
        free(arena->on_device.weights);
        arena->on_device.weights = weights;
        arena->on_device.weight_count = count;
        weights = NULL;
    }
    tl_lock_release(&client->lock);
    free(weights);
    return code;
}
