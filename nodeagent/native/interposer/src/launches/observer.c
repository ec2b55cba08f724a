/* See observer.h. */
#include "launches/observer.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "driver/driver.h"
#include "launches/captures.h"
#include "launches/gate.h"
#include "launches/layouts.h"
#include "launches/timing.h"
#include "launches/watched.h"

enum { MOST_READS = 1 << 20 };

/* A word below is a size or a count, one above no address of this architecture. */
#define LEAST_ADDRESS (UINT64_C(1) << 16)
#define MOST_ADDRESS (UINT64_C(1) << 57)

/* As cuda.h defines them for `extra`. */
enum { EXTRA_END = 0, EXTRA_BUFFER = 1, EXTRA_SIZE = 2 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static atomic_bool watching, recording;
static _Atomic uint64_t generation;

/* All under the lock. */
static tierline_weight *own, *shown; /* what the library watches, what the program does */
static uint32_t own_count, shown_count;
static bool *seen;
static uint32_t *order;
static uint32_t order_count;
static tierline_read *reads;
static uint32_t read_count, read_room;
static tierline_observed totals;
static bool *addressed; /* of `shown`: the program has copied its address to the device */

bool observer_watching(void) {
    return atomic_load_explicit(&watching, memory_order_acquire);
}

/* Whether anybody wants to know what was read. Jobs of which only the library watches the weights
 * would else fill memory with it, launch by launch. */
static bool is_recorded(void) {
    return atomic_load_explicit(&recording, memory_order_relaxed) || timing_on();
}

uint64_t observer_generation(void) {
    return atomic_load_explicit(&generation, memory_order_acquire);
}

/* Where what is found goes: weights that are named, or else every word that may be an address. */
struct sink {
    struct watched_found *weights;
    struct observer_range *ranges;
    uint32_t count; /* of the ranges */
};

static uint64_t word_at(const unsigned char *bytes) {
    uint64_t word;
    memcpy(&word, bytes, sizeof word);
    return word;
}

/* Each launch comes here with some tens of words, of which a few are addresses. */
static void find_weights(const unsigned char *bytes, size_t words, struct sink *sink) {
    const struct watched_bounds bounds = watched_bounds;
    for (size_t i = 0; i < words; i++) {
        uint64_t word = word_at(bytes + 8 * i);
        if (watched_may_hold(bounds, word)) {
            watched_find(word, 1, sink->weights);
        }
    }
}

static void find_addresses(const unsigned char *bytes, size_t words, struct sink *sink) {
    for (size_t i = 0; i < words && sink->count < OBSERVER_MOST; i++) {
        uint64_t word = word_at(bytes + 8 * i);
        if (word >= LEAST_ADDRESS && word < MOST_ADDRESS) {
            sink->ranges[sink->count++] = (struct observer_range){word, 1};
        }
    }
}

/* Looks at the aligned words of one piece of parameters that begins at an offset of the whole. */
static void scan(const unsigned char *bytes, size_t offset, size_t size, struct sink *sink) {
    size_t skip = (8 - offset % 8) % 8;
    if (size < skip + 8) {
        return;
    }
    size_t words = (size - skip) / 8;
    totals.words += words;
    if (sink->weights != NULL) {
        find_weights(bytes + skip, words, sink);
    } else {
        find_addresses(bytes + skip, words, sink);
    }
}

/* Where a launch's parameters are: one by one, or all in one buffer. */
struct parameters {
    void *const *each;
    const unsigned char *buffer;
    size_t bytes; /* of the buffer */
};

/* False: there are none, or the driver will refuse them. */
static bool parameters_of(void *const *each, void *const *extra, struct parameters *out) {
    *out = (struct parameters){.each = each};
    for (; each == NULL && extra != NULL && (uintptr_t)extra[0] != EXTRA_END; extra += 2) {
        if ((uintptr_t)extra[0] == EXTRA_BUFFER) {
            out->buffer = extra[1];
        } else if ((uintptr_t)extra[0] == EXTRA_SIZE && extra[1] != NULL) {
            out->bytes = *(const size_t *)extra[1];
        } else {
            return false;
        }
    }
    return each != NULL || out->buffer != NULL;
}

/* Looks at what the kernel declares, and at nothing between: a buffer's gaps may hold addresses of
 * earlier launches. Without a description a buffer is looked at as a whole. */
static void scan_parameters(const struct parameters *given, const struct layout *layout,
                            struct sink *sink) {
    if (layout == NULL) {
        scan(given->buffer, 0, given->buffer != NULL ? given->bytes : 0, sink);
        return;
    }
    for (uint32_t i = 0; i < layout->count; i++) {
        size_t offset = layout->parameters[i].offset;
        size_t size = layout->parameters[i].size;
        bool whole = given->each != NULL || offset + size <= given->bytes;
        const unsigned char *at = given->buffer != NULL ? given->buffer + offset : NULL;
        at = given->each != NULL ? given->each[i] : at;
        if (size >= 8 && whole && at != NULL) {
            scan(at, offset, size, sink);
        }
    }
}

/* Leaves with the lock held. The layout, or NULL when it cannot be had. */
static const struct layout *lock_with_layout(const void *function, bool *unloaded) {
    for (;;) {
        pthread_mutex_lock(&lock);
        const struct layout *known = layouts_find(function);
        if (known != NULL) {
            return known;
        }
        *unloaded = true;
        uint64_t epoch = layouts_epoch();
        pthread_mutex_unlock(&lock);
        struct layout *learned = layouts_learn(function);
        pthread_mutex_lock(&lock);
        if (learned == NULL || (epoch == layouts_epoch() && !layouts_keep(learned))) {
            return NULL;
        }
        if (epoch == layouts_epoch()) {
            return layouts_find(function);
        }
        free(learned); /* of a module that may be gone by now */
        pthread_mutex_unlock(&lock);
    }
}

/* Searches a launch's parameters, under the lock. False: the driver does not describe them. */
static bool search_launch(const void *function, void *const *parameters, void *const *extra,
                          struct sink *sink, bool *unloaded) {
    struct parameters given;
    bool any = parameters_of(parameters, extra, &given);
    const struct layout *layout = lock_with_layout(function, unloaded);
    bool known = layout != NULL && !layout->opaque;
    watched_begin();
    if (any) {
        scan_parameters(&given, known ? layout : NULL, sink);
    }
    pthread_mutex_unlock(&lock);
    return known || given.buffer != NULL || !any;
}

/* NOLINTNEXTLINE(readability-non-const-parameter) written through the sink */
uint32_t observer_ranges(const void *function, void *const *parameters, void *const *extra,
                         struct observer_range *named) {
    struct sink sink = {.ranges = named};
    bool unloaded = false;
    search_launch(function, parameters, extra, &sink, &unloaded);
    return sink.count;
}

bool observer_resolve(const struct observer_range *named, uint32_t count, uint32_t **weights,
                      uint32_t *filled) {
    pthread_mutex_lock(&lock);
    uint32_t room = watched_count();
    uint32_t *larger = realloc(*weights, ((size_t)*filled + room + 1) * sizeof *larger);
    if (larger != NULL) {
        struct watched_found found = {.weights = larger + *filled, .room = room};
        watched_begin();
        for (uint32_t i = 0; i < count; i++) {
            watched_find(named[i].address, named[i].bytes, &found);
        }
        *weights = larger;
        *filled += found.count;
    }
    pthread_mutex_unlock(&lock);
    return larger != NULL;
}

uint32_t observer_shown(uint32_t weight) {
    pthread_mutex_lock(&lock);
    uint32_t at = weight < own_count ? UINT32_MAX : weight - own_count;
    pthread_mutex_unlock(&lock);
    return at;
}

/* ---- what was read, under the lock */

/* What the program watches is what it is told of, and everything while it watches nothing. */
static void record(uint64_t launch, uint32_t weight) {
    if (shown_count > 0 && weight < own_count) {
        return;
    }
    weight -= shown_count > 0 ? own_count : 0;
    if (!seen[weight]) {
        seen[weight] = true;
        order[order_count++] = weight;
    }
    totals.reads++;
    if (read_count == read_room && read_room < MOST_READS) {
        uint32_t room = read_room == 0 ? 1024 : read_room * 2;
        tierline_read *larger = realloc(reads, room * sizeof *reads);
        if (larger != NULL) {
            reads = larger;
            read_room = room;
        }
    }
    if (read_count == read_room) {
        totals.dropped_reads++;
        return;
    }
    reads[read_count++] = (tierline_read){.launch = launch, .weight = weight};
}

/* Whether no call was recorded yet that reads it. */
static bool is_unread(uint32_t weight) {
    bool counts = shown_count == 0 || weight >= own_count;
    return counts && !seen[weight - (shown_count > 0 ? own_count : 0)];
}

static uint64_t ordinal(void) {
    return totals.launches + totals.copies;
}

/* After the gate let a call through that runs now: whether it is to be timed. */
static void time_first_read(struct tierline_call *call, uint64_t found_in) {
    if (!timing_on() || call->weight_count == 0 || call->captured) {
        return;
    }
    bool first = false;
    pthread_mutex_lock(&lock);
    for (uint32_t i = 0; i < call->weight_count && found_in == observer_generation(); i++) {
        first = first || is_unread(call->weights[i]);
    }
    uint64_t launch = ordinal();
    pthread_mutex_unlock(&lock);
    if (first) {
        timing_before(call, launch);
    }
}

int observer_launch(struct tierline_call *call, const void *function, void *const *parameters,
                    void *const *extra) {
    if (!observer_watching()) {
        return gate_ask(call);
    }
    uint32_t weights[OBSERVER_MOST];
    struct watched_found found = {.weights = weights, .room = OBSERVER_MOST};
    struct sink sink = {.weights = &found};
    uint64_t found_in = observer_generation();
    bool known = search_launch(function, parameters, extra, &sink, &call->unloaded);
    call->function = function;
    call->generation = found_in;
    call->weights = weights;
    call->weight_count = found.count;
    call->captured = found.count > 0 && captures_now(call->stream, call->per_thread);
    int verdict = gate_ask(call);
    if (verdict != ABI_SUCCESS || !is_recorded()) {
        return verdict;
    }
    time_first_read(call, found_in);
    pthread_mutex_lock(&lock);
    if (found_in == observer_generation()) {
        for (uint32_t i = 0; i < found.count && !call->captured; i++) {
            record(ordinal(), weights[i]);
        }
        totals.captured += call->captured;
        totals.launches += !call->captured;
        totals.opaque_launches += !known;
    }
    pthread_mutex_unlock(&lock);
    return verdict;
}

int observer_launches(struct tierline_call *call, const void *list, unsigned int count) {
    const struct abi_device_launch *launches = list;
    int verdict = ABI_SUCCESS;
    for (unsigned int i = 0; launches != NULL && i < count && verdict == ABI_SUCCESS; i++) {
        call->stream = launches[i].stream;
        verdict = observer_launch(call, launches[i].function, launches[i].parameters, NULL);
    }
    return verdict;
}

static int ask_for_copy(struct tierline_call *call, uint64_t found_in,
                        const struct watched_found *found) {
    call->weights = found->weights;
    call->weight_count = found->count;
    call->generation = found_in;
    call->captured = found->count > 0 && captures_now(call->stream, call->per_thread);
    int verdict = gate_ask(call);
    bool is_read = found->count > 0 && !call->addresses && !call->written && !call->captured;
    if (verdict == ABI_SUCCESS && is_read && is_recorded()) {
        time_first_read(call, found_in);
        pthread_mutex_lock(&lock);
        if (found_in == observer_generation()) {
            for (uint32_t i = 0; i < found->count; i++) {
                record(ordinal(), found->weights[i]);
            }
            totals.copies++;
        }
        pthread_mutex_unlock(&lock);
    }
    return verdict;
}

static int copy_pieces(struct tierline_call *call, const uint64_t *sources, const size_t *bytes,
                       size_t count) {
    uint32_t few[OBSERVER_MOST];
    struct watched_found found = {.weights = few, .room = OBSERVER_MOST};
    uint64_t found_in = observer_generation();
    pthread_mutex_lock(&lock);
    if (watched_count() > OBSERVER_MOST) { /* a copy can name them all */
        found.room = watched_count();
        found.weights = malloc(found.room * sizeof *found.weights);
    }
    watched_begin();
    for (size_t i = 0; i < count && found.weights != NULL; i++) {
        watched_find(sources[i], bytes[i], &found);
    }
    pthread_mutex_unlock(&lock);
    int verdict =
        found.weights == NULL ? (int)ABI_OUT_OF_MEMORY : ask_for_copy(call, found_in, &found);
    call->weights = NULL;
    call->weight_count = 0;
    if (found.weights != few) {
        free(found.weights);
    }
    return verdict;
}

int observer_copy(struct tierline_call *call, uint64_t source, uint64_t bytes) {
    size_t size = bytes;
    return observer_watching() ? copy_pieces(call, &source, &size, 1) : gate_ask(call);
}

int observer_transfer(struct tierline_call *call, uint64_t source, uint64_t bytes) {
    call->transferred = bytes;
    return observer_copy(call, source, bytes);
}

/* Shows the weights in [target, target + bytes), if the library watches any: a gate of the
 * program's is told of what is read. */
static int show_written(struct tierline_call *call, uint64_t target, uint64_t bytes) {
    int verdict = ABI_SUCCESS;
    const struct watched_bounds bounds = watched_bounds;
    if (observer_watching() && own_count > 0 &&
        (watched_may_hold(bounds, target) || bounds.lowest - target < bytes)) {
        call->written = true;
        verdict = copy_pieces(call, &target, &(size_t){bytes}, 1);
        call->written = false;
    }
    return verdict;
}

/* The call's last question, if it has not been asked one. */
static int ask_once(struct tierline_call *call) {
    return call->held == 0 ? gate_ask(call) : (int)ABI_SUCCESS;
}

int observer_set(struct tierline_call *call, uint64_t target, uint64_t bytes) {
    int verdict = show_written(call, target, bytes);
    return verdict == ABI_SUCCESS ? ask_once(call) : verdict;
}

int observer_move(struct tierline_call *call, uint64_t target, uint64_t source, uint64_t bytes) {
    int verdict = show_written(call, target, bytes);
    return verdict == ABI_SUCCESS ? observer_copy(call, source, bytes) : verdict;
}

/* Words from *at on that may be addresses of weights, as many as there is room for; *at is where to
 * go on. Without the lock: a program may copy gigabytes. */
static uint32_t find_words(const unsigned char *bytes, uint64_t end, uint64_t *at,
                           struct observer_range *words) {
    pthread_mutex_lock(&lock);
    const struct watched_bounds bounds = watched_bounds;
    pthread_mutex_unlock(&lock);
    uint32_t count = 0;
    for (; *at + 8 <= end && count < OBSERVER_MOST; *at += 8) {
        uint64_t word = word_at(bytes + *at);
        if (watched_may_hold(bounds, word)) {
            words[count++] = (struct observer_range){word, 1};
        }
    }
    return count;
}

/* Words that may be addresses, among those that the program copied to the device since it began. A
 * table is small and lies there for long; what else looks like an address overwrites a few of them.
 */
enum { MOST_REMEMBERED = 1 << 18, MOST_TABLE_BYTES = 1 << 20 };
#define LEAST_DEVICE_ADDRESS (UINT64_C(1) << 32)
#define MOST_DEVICE_ADDRESS (UINT64_C(1) << 47)
static uint64_t *remembered;

static void remember(const unsigned char *bytes, uint64_t at, uint64_t end) {
    if (end > MOST_TABLE_BYTES) {
        return;
    }
    pthread_mutex_lock(&lock);
    for (; at + 8 <= end; at += 8) {
        uint64_t word = word_at(bytes + at);
        if (word % 8 != 0 || word < LEAST_DEVICE_ADDRESS || word >= MOST_DEVICE_ADDRESS) {
            continue;
        }
        remembered = remembered == NULL ? calloc(MOST_REMEMBERED, sizeof *remembered) : remembered;
        if (remembered != NULL) {
            remembered[(word * UINT64_C(0x9e3779b97f4a7c15)) >> 46] = word;
        }
    }
    pthread_mutex_unlock(&lock);
}

/* Under the lock. */
static void note_addressed(const struct watched_found *found) {
    for (uint32_t i = 0; i < found->count; i++) {
        if (found->weights[i] >= own_count) {
            addressed[found->weights[i] - own_count] = true;
        }
    }
}

/* Under the lock: what is watched from now on may have been in tables before. */
static void recall(void) {
    const struct watched_bounds bounds = watched_bounds;
    for (uint32_t i = 0; remembered != NULL && shown_count > 0 && i < MOST_REMEMBERED; i++) {
        if (watched_may_hold(bounds, remembered[i])) {
            uint32_t weight;
            struct watched_found found = {.weights = &weight, .room = 1};
            watched_begin();
            watched_find(remembered[i], 1, &found);
            note_addressed(&found);
        }
    }
}

/* Once a weight's address is on the device, a launch that does not name it may read it. */
int observer_upload(struct tierline_call *call, uint64_t target, const void *source,
                    uint64_t bytes) {
    call->transferred = bytes;
    uint64_t at = (8 - target % 8) % 8;
    int verdict = show_written(call, target, bytes);
    if (source != NULL) {
        remember(source, at, bytes);
    }
    for (bool again = observer_watching() && source != NULL; again && verdict == ABI_SUCCESS;) {
        struct observer_range words[OBSERVER_MOST];
        uint32_t weights[OBSERVER_MOST];
        struct watched_found found = {.weights = weights, .room = OBSERVER_MOST};
        uint64_t found_in = observer_generation();
        uint32_t count = find_words(source, bytes, &at, words);
        again = count == OBSERVER_MOST;
        pthread_mutex_lock(&lock);
        watched_begin();
        for (uint32_t i = 0; i < count; i++) {
            watched_find(words[i].address, 1, &found);
        }
        note_addressed(&found);
        pthread_mutex_unlock(&lock);
        call->addresses = found.count > 0 && own_count > 0;
        verdict = call->addresses ? ask_for_copy(call, found_in, &found) : verdict;
        call->weights = NULL;
        call->weight_count = 0;
        call->addresses = false;
    }
    return verdict == ABI_SUCCESS ? ask_once(call) : verdict;
}

int observer_copies(struct tierline_call *call, const uint64_t *sources, const size_t *bytes,
                    size_t count) {
    bool look = observer_watching() && sources != NULL && bytes != NULL;
    return look ? copy_pieces(call, sources, bytes, count) : gate_ask(call);
}

uint64_t observer_replayed(uint64_t found_in, const uint32_t *weights, const uint32_t *ends,
                           uint32_t kernels, bool *first) {
    if (!is_recorded()) {
        return 0;
    }
    pthread_mutex_lock(&lock);
    uint64_t launch = ordinal();
    if (found_in == observer_generation()) {
        for (uint32_t k = 0, i = 0; k < kernels; k++) {
            for (; i < ends[k]; i++) {
                if (first != NULL && is_unread(weights[i])) {
                    first[k] = true;
                }
                record(ordinal(), weights[i]);
            }
            totals.launches++;
        }
    }
    pthread_mutex_unlock(&lock);
    return launch;
}

/* ---- the API */

static void restart(void) {
    memset(&totals, 0, sizeof totals);
    read_count = 0;
    order_count = 0;
    if (seen != NULL) {
        memset(seen, 0, (own_count + shown_count) * sizeof *seen);
    }
}

static void forget(void) {
    watched_use(NULL);
    free(seen);
    free(addressed);
    free(order);
    free(reads);
    addressed = NULL;
    seen = NULL;
    order = NULL;
    reads = NULL;
    read_room = 0;
    restart();
}

/* Under the lock: puts new ranges in the place of the library's, or of the program's. */
static int watch(const tierline_weight *weights, uint32_t count, bool by_library) {
    uint32_t all = count + (by_library ? shown_count : own_count);
    struct watched_set *fresh = NULL;
    int result = by_library ? watched_make(weights, count, shown, shown_count, &fresh)
                            : watched_make(own, own_count, weights, count, &fresh);
    if (result != 0) {
        return result;
    }
    tierline_weight *kept = calloc(count + 1U, sizeof *kept);
    bool *new_seen = calloc(all + 1U, sizeof *new_seen);
    bool *new_addressed = calloc(all + 1U, sizeof *new_addressed);
    uint32_t *new_order = calloc(all + 1U, sizeof *new_order);
    if (kept == NULL || new_seen == NULL || new_addressed == NULL || new_order == NULL) {
        watched_free(fresh);
        free(kept);
        free(new_seen);
        free(new_addressed);
        free(new_order);
        return -ENOMEM;
    }
    if (count > 0) {
        memcpy(kept, weights, count * sizeof *kept);
    }
    forget();
    tierline_weight **part = by_library ? &own : &shown;
    free(*part);
    *part = kept;
    *(by_library ? &own_count : &shown_count) = count;
    watched_use(fresh);
    seen = new_seen;
    order = new_order;
    addressed = new_addressed;
    recall();
    atomic_fetch_add(&generation, 1);
    atomic_store_explicit(&recording, shown_count > 0, memory_order_relaxed);
    atomic_store_explicit(&watching, all > 0, memory_order_release);
    return 0;
}

TIERLINE_EXPORT int tierline_observer_watch(const tierline_weight *weights, uint32_t count) {
    timing_restart();
    pthread_mutex_lock(&lock);
    int result = watch(weights, count, false);
    pthread_mutex_unlock(&lock);
    return result;
}

int observer_watch_own(const tierline_weight *weights, uint32_t count, uint64_t *found_in) {
    pthread_mutex_lock(&lock);
    int result = watch(weights, count, true);
    *found_in = observer_generation();
    pthread_mutex_unlock(&lock);
    return result;
}

TIERLINE_EXPORT void tierline_observer_restart(void) {
    timing_restart();
    pthread_mutex_lock(&lock);
    restart();
    pthread_mutex_unlock(&lock);
}

TIERLINE_EXPORT uint32_t tierline_observer_order(uint32_t *out, uint32_t capacity) {
    pthread_mutex_lock(&lock);
    uint32_t count = order_count;
    for (uint32_t i = 0; i < count && i < capacity; i++) {
        out[i] = order[i];
    }
    pthread_mutex_unlock(&lock);
    return count;
}

TIERLINE_EXPORT uint32_t tierline_observer_addressed(uint32_t *out, uint32_t capacity) {
    pthread_mutex_lock(&lock);
    uint32_t count = 0;
    for (uint32_t i = 0; i < shown_count && addressed != NULL; i++) {
        if (addressed[i]) {
            if (count < capacity) {
                out[count] = i;
            }
            count++;
        }
    }
    pthread_mutex_unlock(&lock);
    return count;
}

TIERLINE_EXPORT uint32_t tierline_observer_reads(tierline_read *out, uint32_t capacity) {
    pthread_mutex_lock(&lock);
    uint32_t count = read_count;
    for (uint32_t i = 0; i < count && i < capacity; i++) {
        out[i] = reads[i];
    }
    pthread_mutex_unlock(&lock);
    return count;
}

TIERLINE_EXPORT void tierline_observer_totals(tierline_observed *out) {
    pthread_mutex_lock(&lock);
    *out = totals;
    pthread_mutex_unlock(&lock);
}

int observer_forget_layouts(void) {
    pthread_mutex_lock(&lock);
    layouts_clear();
    pthread_mutex_unlock(&lock);
    return ABI_SUCCESS;
}

void observer_fork_before(void) {
    pthread_mutex_lock(&lock);
}

void observer_fork_after(bool in_child) {
    if (in_child) {
        forget();
        free(own);
        free(shown);
        own = NULL;
        shown = NULL;
        own_count = 0;
        shown_count = 0;
        layouts_clear();
        atomic_fetch_add(&generation, 1);
        atomic_store(&recording, false);
        atomic_store(&watching, false);
        gate_forget();
        captures_forget();
        timing_forget();
    }
    pthread_mutex_unlock(&lock);
}
