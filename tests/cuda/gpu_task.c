/* What a task on a GPU does with its weights. One scenario, named by the first argument, a process;
 * the second is the agent's socket, the third the number of extents. */
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "gpu_kit.h"
#include "simcuda.h"
#include "simcuda_upload.h"

static struct task task;
static const char *socket_path;
static uint32_t extents;
static CUcontext context;

static void load_all(void) {
    context = use_gpu();
    load(&task, socket_path, 0, extents, 1);
}

/* One pass in the learned order on one stream. */
static void pass(CUstream stream) {
    for (uint32_t w = 0; w < task.count; w++) {
        OK(launch(&task, w, w, stream, 0));
    }
}

/* Says a word and waits for the answer, so that the test can act. */
static void say(const char *word) {
    char line[64];
    puts(word);
    fflush(stdout);
    HOLDS(fgets(line, sizeof line, stdin) != NULL);
}

static void in_order(void) {
    load_all();
    CUstream stream;
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    for (int i = 0; i < 3; i++) {
        clear(&task);
        uint64_t job = begin(&task);
        pass(stream);
        check(&task, 0, task.count, stream);
        tierline_job_stats stats = end(&task, job);
        HOLDS(stats.fetched_bytes == 0);
        HOLDS(stats.streamed_extents > 0 || getenv("ALL_RESIDENT") != NULL);
    }
    HOLDS(jobs(&task) == 3);
}

/* As a launch does in whose parameters an old address lies. */
static void named_again(void) {
    load_all();
    uint64_t job = begin(&task);
    pass(NULL);
    check(&task, 0, task.count, NULL);
    tierline_job_stats once = end(&task, job);
    clear(&task);
    job = begin(&task);
    for (uint32_t w = 0; w < task.count; w++) {
        OK(launch(&task, w, w, NULL, 0));
        OK(launch(&task, w, w, NULL, 0));
    }
    check(&task, 0, task.count, NULL);
    tierline_job_stats again = end(&task, job);
    HOLDS(again.fetched_bytes == 0);
    HOLDS(again.streamed_extents == once.streamed_extents);
}

/* Extents that a job streams twice where its stream goes somewhere and comes back. */
enum { MOST_AGAIN = 6 };

/* The same with an address of the last weight: the stream goes there and comes back. */
static void named_far_ahead(void) {
    load_all();
    uint32_t last = task.count - 1;
    uint64_t job = begin(&task);
    pass(NULL);
    tierline_job_stats once = end(&task, job);
    for (uint32_t where = 0; where < 3; where++) {
        clear(&task);
        job = begin(&task);
        for (uint32_t w = 0; w < task.count; w++) {
            if (w == where) {
                OK(launch(&task, last, last, NULL, 0));
                check(&task, last, last + 1, NULL);
            }
            OK(launch(&task, w, w, NULL, 0));
        }
        check(&task, 0, task.count, NULL);
        tierline_job_stats again = end(&task, job);
        HOLDS(again.fetched_bytes == 0);
        HOLDS(again.streamed_extents <= once.streamed_extents + MOST_AGAIN);
    }
}

/* A job that skips there streams nothing of what lies between. */
static void skipping_far(void) {
    load_all();
    uint32_t there = task.count - 3;
    for (int i = 0; i < 3; i++) {
        clear(&task);
        uint64_t job = begin(&task);
        OK(launch(&task, 0, 0, NULL, 0));
        for (uint32_t w = there; w < task.count; w++) {
            OK(launch(&task, w, w, NULL, 0));
        }
        check(&task, 0, 1, NULL);
        check(&task, there, task.count, NULL);
        HOLDS(end(&task, job).fetched_bytes == 0);
    }
    /* And where nothing comes after it. */
    for (int i = 0; i < 3; i++) {
        clear(&task);
        uint64_t job = begin(&task);
        OK(launch(&task, 0, 0, NULL, 0));
        OK(launch(&task, task.count - 1, task.count - 1, NULL, 0));
        check(&task, task.count - 1, task.count, NULL);
        HOLDS(end(&task, job).fetched_bytes == 0);
    }
}

static void default_streams(void) {
    load_all();
    for (int i = 0; i < 2; i++) {
        clear(&task);
        uint64_t job = begin(&task);
        CUstream stream = i == 0 ? NULL : CU_STREAM_PER_THREAD;
        pass(stream);
        check(&task, 0, task.count, stream);
        HOLDS(end(&task, job).fetched_bytes == 0);
    }
}

static void without_a_job(void) {
    load_all();
    for (uint64_t i = 1; i <= 3; i++) {
        clear(&task);
        pass(NULL);
        check(&task, 0, task.count, NULL);
        while (jobs(&task) < i) { /* ends by itself */
            nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        }
    }
    uint64_t job = begin(&task); /* right after an implicit one */
    pass(NULL);
    check(&task, 0, task.count, NULL);
    end(&task, job);
}

static void skipping(void) {
    load_all();
    for (uint32_t left_out = 2; left_out < 5; left_out++) {
        clear(&task);
        uint64_t job = begin(&task);
        for (uint32_t w = 0; w < task.count; w++) {
            if (w % left_out != 0) {
                OK(launch(&task, w, w, NULL, 0));
            }
        }
        OK(cuCtxSynchronize());
        for (uint32_t w = 0; w < task.count; w++) {
            HOLDS(task.results[w] == (w % left_out != 0 ? expected(&task, w) : 0));
        }
        HOLDS(end(&task, job).fetched_bytes == 0);
    }
}

static void passes(void) {
    load_all();
    uint64_t job = begin(&task);
    for (int i = 0; i < 4; i++) {
        clear(&task);
        pass(NULL);
        check(&task, 0, task.count, NULL);
    }
    OK(tierline_rewind(task.client));
    pass(NULL);
    check(&task, 0, task.count, NULL);
    for (int i = 0; i < 2; i++) { /* of a part, from the middle on */
        clear(&task);
        for (uint32_t w = task.count / 2; w < task.count; w++) {
            OK(launch(&task, w, w, NULL, 0));
        }
        check(&task, task.count / 2, task.count, NULL);
    }
    HOLDS(end(&task, job).fetched_bytes == 0);
}

static void random_order(void) {
    load_all();
    uint64_t state = 7;
    for (int i = 0; i < 3; i++) {
        clear(&task);
        uint64_t job = begin(&task);
        bool read[MOST_WEIGHTS] = {false};
        for (int k = 0; k < 40; k++) {
            state = state * 6364136223846793005U + 1442695040888963407U;
            uint32_t w = (uint32_t)(state >> 33) % task.count;
            OK(launch(&task, w, w, NULL, 0));
            read[w] = true;
        }
        OK(cuCtxSynchronize());
        for (uint32_t w = 0; w < task.count; w++) {
            HOLDS(!read[w] || task.results[w] == expected(&task, w));
        }
        end(&task, job);
    }
}

/* From some job on the other way round. */
static void turned(void) {
    load_all();
    for (int i = 0; i < 6; i++) {
        clear(&task);
        uint64_t job = begin(&task);
        for (uint32_t n = 0; n < task.count; n++) {
            uint32_t w = i < 2 ? n : task.count - 1 - n;
            OK(launch(&task, w, w, NULL, 0));
        }
        check(&task, 0, task.count, NULL);
        end(&task, job);
    }
}

/* The layers' order reversed: each is streamed once more, at most, with what lies around it. */
static void reversed(void) {
    load_all();
    for (int i = 0; i < 3; i++) {
        clear(&task);
        uint64_t job = begin(&task);
        for (uint32_t w = task.count; w-- > 0;) {
            OK(launch(&task, w, w, NULL, 0));
        }
        check(&task, 0, task.count, NULL);
        tierline_job_stats stats = end(&task, job);
        HOLDS(stats.fetched_bytes == 0);
        HOLDS(stats.streamed_extents <= (uint64_t)extents * MOST_AGAIN);
    }
}

static void several_streams(void) {
    load_all();
    CUstream streams[3];
    for (int s = 0; s < 3; s++) {
        OK(cuStreamCreate(&streams[s], CU_STREAM_NON_BLOCKING));
    }
    for (int i = 0; i < 4; i++) {
        clear(&task);
        uint64_t job = begin(&task);
        for (uint32_t w = 0; w < task.count; w++) {
            /* Some slow, so that another stream is far ahead of it. */
            OK(launch(&task, w, w, streams[(w + (uint32_t)i) % 3], w % 5 == 0 ? 2000000 : 0));
        }
        OK(cuCtxSynchronize());
        check(&task, 0, task.count, NULL);
        HOLDS(end(&task, job).fetched_bytes == 0);
    }
}

static void streams_that_end(void) {
    load_all();
    for (int i = 0; i < 2; i++) {
        clear(&task);
        uint64_t job = begin(&task);
        for (uint32_t w = 0; w < task.count; w++) {
            CUstream stream;
            OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
            OK(launch(&task, w, w, stream, w % 4 == 0 ? 1000000 : 0));
            OK(cuStreamDestroy(stream));
        }
        OK(cuCtxSynchronize());
        check(&task, 0, task.count, NULL);
        HOLDS(end(&task, job).fetched_bytes == 0);
    }
}

struct worker {
    uint32_t number;
    pthread_t thread;
};

static void *work(void *argument) {
    const struct worker *worker = argument;
    OK(cuCtxSetCurrent(context));
    CUstream stream = CU_STREAM_PER_THREAD;
    if (worker->number > 0) {
        OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    }
    for (int i = 0; i < 3; i++) {
        for (uint32_t w = worker->number; w < task.count; w += 4) {
            OK(launch(&task, w, w, stream, 0));
        }
    }
    OK(cuStreamSynchronize(stream));
    return NULL;
}

/* Many rounds: a fault of a moment in which the GPU stands showed in one of a thousand. */
static void threads(void) {
    load_all();
    for (int round = 0; round < 8; round++) {
        bool explicit = round >= 4;
        clear(&task);
        uint64_t job = explicit ? begin(&task) : 0;
        struct worker workers[4];
        for (uint32_t i = 0; i < 4; i++) {
            workers[i].number = i;
            OK(pthread_create(&workers[i].thread, NULL, work, &workers[i]));
        }
        for (int i = 0; i < 4; i++) {
            OK(pthread_join(workers[i].thread, NULL));
        }
        check(&task, 0, task.count, NULL);
        if (explicit) {
            end(&task, job);
        }
    }
}

static void copies(void) {
    load_all();
    uint8_t *copy = malloc(task.weight_bytes);
    HOLDS(copy != NULL);
    for (int explicit = 0; explicit < 2; explicit ++) {
        uint64_t job = explicit ? begin(&task) : 0;
        memset(copy, 0, task.weight_bytes);
        for (uint32_t w = 0; w < task.count; w++) {
            const struct weight *weight = &task.weights[w];
            OK(cuMemcpyDtoH(copy + weight->offset, weight->address, weight->bytes));
        }
        HOLDS(memcmp(copy, task.content, task.weight_bytes) == 0);
        if (explicit) {
            end(&task, job);
        }
    }
    /* The same by rows, the second half of each weight first. */
    memset(copy, 0, task.weight_bytes);
    for (uint32_t w = 0; w < task.count; w++) {
        const struct weight *weight = &task.weights[w];
        CUDA_MEMCPY2D half = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                              .srcDevice = weight->address,
                              .srcPitch = weight->bytes / 2,
                              .dstMemoryType = CU_MEMORYTYPE_HOST,
                              .dstHost = copy + weight->offset,
                              .dstPitch = weight->bytes / 2,
                              .WidthInBytes = weight->bytes / 2,
                              .Height = 1};
        half.srcY = half.dstY = 1;
        OK(cuMemcpy2D(&half));
        half.srcY = half.dstY = 0;
        OK(cuMemcpy2D(&half));
    }
    HOLDS(memcmp(copy, task.content, task.weight_bytes) == 0);
    /* All of it at once is more than the ring holds. */
    memset(copy, 0, task.weight_bytes);
    OK(cuMemcpyDtoH(copy, task.weights[0].address, task.weight_bytes));
    HOLDS(memcmp(copy, task.content, task.weight_bytes) == 0);
    free(copy);
}

static void out_of_reach(void) {
    load_all();
    uint64_t one = expected(&task, 0);
    for (int i = 0; i < 2; i++) {
        clear(&task);
        uint64_t job = begin(&task);
        pass(NULL);
        OK(launch_pair(&task, 0, task.count - 1, 100, NULL));
        pass(NULL);
        check(&task, 0, task.count, NULL);
        HOLDS(task.results[100] != 0 && task.results[100] != one);
        end(&task, job);
    }
}

static void two_arenas(void) {
    extents /= 2;
    load_all();
    struct task other;
    load_another(&other, &task, 1, extents, 2);
    for (int i = 0; i < 3; i++) {
        clear(&task);
        clear(&other);
        pass(NULL);
        for (uint32_t w = 0; w < other.count; w++) {
            OK(launch(&other, w, w, NULL, 0));
        }
        check(&task, 0, task.count, NULL);
        check(&other, 0, other.count, NULL);
    }
    uint64_t job = begin(&task);
    pass(NULL);
    OK(launch(&other, 1, 1, NULL, 0));
    check(&task, 0, task.count, NULL);
    check(&other, 1, 2, NULL);
    end(&task, job);
    OK(tierline_free(task.client, 1));
    pass(NULL);
    check(&task, 0, task.count, NULL);
}

/* All weights of an arena in their order, and their bytes. */
static void read_all(struct task *of) {
    clear(of);
    for (uint32_t w = 0; w < of->count; w++) {
        OK(launch(of, w, w, NULL, 0));
    }
}

static void check_all(struct task *of) {
    check(of, 0, of->count, NULL);
}

/* A model of which a part is also called by itself: a job of the whole reads two arenas. It
 * streams both, also one that has only the lease, and where it reads them in turns. */
static void two_roots(void) {
    struct task whole;
    extents /= 2;
    load_all();
    load_another(&whole, &task, 1, extents, 2);
    for (int i = 0; i < 4; i++) {
        uint64_t job = begin(&task);
        read_all(&task);
        check_all(&task);
        HOLDS(end(&task, job).fetched_bytes == 0);
        OK(tierline_job_begin(task.client, i % 2 == 0 ? 1 : TIERLINE_NO_ARENA, 0, 0,
                              UINT64_MAX >> 2, &job));
        read_all(&task);
        read_all(&whole);
        check_all(&task);
        check_all(&whole);
        HOLDS(end(&whole, job).fetched_bytes == 0);
    }
    for (int i = 0; i < 2; i++) {
        uint64_t job = begin(&whole);
        for (uint32_t w = 0; w < task.count && w < whole.count; w++) { /* in turns */
            OK(launch(&task, w, w, NULL, 0));
            OK(launch(&whole, w, w, NULL, 0));
        }
        for (int k = 0; k < 2; k++) {
            read_all(&task);
            read_all(&whole);
            check_all(&task);
            check_all(&whole);
        }
        end(&whole, job);
    }
}

enum { TABLE = 6, TABLE_BYTES = 4096, TABLE_SLOT = 200 };

/* Kernels that read what no launch names: what lies at the addresses in a table. */
struct tables {
    CUfunction array, fill;
    CUdeviceptr table;
};

static struct tables make_tables(void) {
    struct tables made;
    CUmodule module;
    OK(cuModuleLoadData(&module, SIMCUDA_IMAGE));
    OK(cuModuleGetFunction(&made.array, module, "sim_gemm_array"));
    OK(cuModuleGetFunction(&made.fill, module, "sim_fill"));
    OK(cuMemAlloc(&made.table, TABLE * sizeof(uint64_t)));
    return made;
}

/* The weights of which the nth lies in the table: far apart. */
static const struct weight *tabled(uint32_t n) {
    return &task.weights[n * (task.count - 1) / (TABLE - 1)];
}

static void list_addresses(uint64_t *addresses) {
    for (uint32_t n = 0; n < TABLE; n++) {
        addresses[n] = tabled(n)->address;
    }
}

static void read_by_table(const struct tables *of, uint32_t slot) {
    uint64_t count = TABLE;
    uint64_t bytes = TABLE_BYTES;
    uint64_t in = (uint64_t)(uintptr_t)(task.results + 256); /* a word that is 0 */
    uint64_t out = (uint64_t)(uintptr_t)(task.results + slot);
    uint64_t table = of->table;
    void *parameters[] = {&table, &count, &bytes, &in, &out};
    OK(cuLaunchKernel(of->array, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL));
}

static void check_table(uint32_t slot) {
    uint64_t hash = 0;
    for (uint32_t n = 0; n < TABLE; n++) {
        hash = simcuda_hash(hash, task.content + tabled(n)->offset, TABLE_BYTES);
    }
    OK(cuCtxSynchronize());
    HOLDS(task.results[slot] == hash);
}

/* A pass with a read by the table in its middle and at its end. */
static void pass_with_table(const struct tables *of) {
    clear(&task);
    uint64_t job = begin(&task);
    for (uint32_t w = 0; w < task.count; w++) {
        OK(launch(&task, w, w, NULL, 0));
        if (w == task.count / 2) {
            read_by_table(of, TABLE_SLOT);
        }
    }
    read_by_table(of, TABLE_SLOT + 1);
    check(&task, 0, task.count, NULL);
    check_table(TABLE_SLOT);
    check_table(TABLE_SLOT + 1);
    end(&task, job);
}

/* Kernels that nobody can know to read weights, or which: by a table in pinned memory, by distances
 * from a weight. The first job that launches one ends, loudly, and never reads other bytes. */
static struct tables pinned_table(void) {
    struct tables made = make_tables();
    uint64_t *table;
    OK(cuMemHostAlloc((void **)&table, TABLE * sizeof *table, CU_MEMHOSTALLOC_DEVICEMAP));
    list_addresses(table);
    made.table = (CUdeviceptr)(uintptr_t)table;
    return made;
}

static void read_by_distance(uint32_t slot) {
    CUmodule module;
    CUfunction by_distance;
    CUdeviceptr table;
    uint64_t distances[TABLE];
    for (uint32_t n = 0; n < TABLE; n++) {
        distances[n] = tabled(n)->address - task.weights[0].address;
    }
    OK(cuModuleLoadData(&module, SIMCUDA_IMAGE));
    OK(cuModuleGetFunction(&by_distance, module, "sim_gemm_offsets"));
    OK(cuMemAlloc(&table, sizeof distances));
    OK(simcuda_upload(table, distances, sizeof distances));
    uint64_t count = TABLE;
    uint64_t bytes = TABLE_BYTES;
    uint64_t in = (uint64_t)(uintptr_t)(task.results + 256);
    uint64_t out = (uint64_t)(uintptr_t)(task.results + slot);
    void *parameters[] = {&task.weights[0].address, &table, &count, &bytes, &in, &out};
    OK(cuLaunchKernel(by_distance, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL));
}

static void faulted(int code) {
    HOLDS(code == TIERLINE_E_GPU);
    HOLDS(cuCtxSynchronize() == CUDA_ERROR_ILLEGAL_ADDRESS);
    HOLDS(task.results[TABLE_SLOT] == 0);
}

static void unseen_table(void) {
    load_all();
    struct tables made = pinned_table();
    uint64_t job = begin(&task);
    pass(NULL);
    read_by_table(&made, TABLE_SLOT);
    faulted(tierline_job_end(task.client, job, 0));
}

static void unseen_distance(void) {
    load_all();
    uint64_t job = begin(&task);
    pass(NULL);
    read_by_distance(TABLE_SLOT);
    faulted(tierline_job_end(task.client, job, 0));
}

/* The jobs before have launched all but that kernel; weights pass through the ring again. */
static void unseen_later(void) {
    load_all();
    struct tables made = pinned_table();
    for (int i = 0; i < 3; i++) {
        clear(&task);
        uint64_t job = begin(&task);
        pass(NULL);
        check(&task, 0, task.count, NULL);
        HOLDS(end(&task, job).fetched_bytes == 0);
    }
    clear(&task);
    uint64_t job = begin(&task);
    for (uint32_t w = 0; w < task.count; w++) {
        CUresult result = launch(&task, w, w, NULL, 0);
        HOLDS(result == CUDA_SUCCESS ||
              (result == CUDA_ERROR_ILLEGAL_ADDRESS && w > task.count / 2));
        if (w == task.count / 2) {
            read_by_table(&made, TABLE_SLOT);
        }
    }
    faulted(tierline_job_end(task.client, job, 0));
}

static void unseen_between(void) {
    load_all();
    struct tables made = pinned_table();
    uint64_t job = begin(&task);
    pass(NULL);
    check(&task, 0, task.count, NULL);
    end(&task, job);
    read_by_table(&made, TABLE_SLOT);
    HOLDS(cuCtxSynchronize() == CUDA_ERROR_ILLEGAL_ADDRESS);
    HOLDS(task.results[TABLE_SLOT] == 0);
    tierline_job_begin(task.client, 0, 0, 0, UINT64_MAX >> 2, &job); /* ends what read it */
}

/* Readers from numbers (READER): how the kernel finds its bytes, of how many weights, on which
 * stream, after which weight's launch and how many jobs without it. What it finds by an address or
 * a distance of now is right or a fault; a distance from before the weights moved leads nowhere. */
enum { MOST_READ = 3 };

struct reader {
    enum { BY_TABLE, BY_DISTANCE, BY_STALE_DISTANCE, WAYS } way;
    uint32_t base, count;
    uint64_t found[MOST_READ]; /* addresses */
    CUfunction kernel;
    CUdeviceptr table;
    CUstream stream;
};

static uint64_t draw(uint64_t *state, uint64_t below) {
    *state += 0x9e3779b97f4a7c15U;
    uint64_t mixed = (*state ^ (*state >> 30)) * 0xbf58476d1ce4e5b9U;
    mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111ebU;
    return (mixed ^ (mixed >> 31)) % below;
}

static uint32_t draw_weight(uint64_t *state) {
    uint32_t w = (uint32_t)draw(state, task.count);
    while (task.weights[w].bytes < TABLE_BYTES) {
        w = (uint32_t)draw(state, task.count);
    }
    return w;
}

/* A place in no extent of the weight: of this arena, seldom outside of it. */
static uint64_t draw_stray(uint64_t *state, uint32_t weight) {
    uint64_t size = extents * task.extent_bytes;
    uint64_t base = task.weights[0].address - task.weights[0].offset;
    uint64_t first = task.weights[weight].offset / task.extent_bytes;
    uint64_t last =
        (task.weights[weight].offset + task.weights[weight].bytes - 1) / task.extent_bytes;
    for (;;) {
        uint64_t beyond = draw(state, 4) == 0 ? size : 0;
        uint64_t steps = (size + 2 * beyond) / TABLE_BYTES;
        uint64_t place = base - beyond + draw(state, steps) * TABLE_BYTES;
        uint64_t extent = (place - base) / task.extent_bytes;
        if (place < base || extent < first || extent > last) {
            return place;
        }
    }
}

static struct reader draw_reader(uint64_t *state) {
    struct reader made = {.way = (int)draw(state, WAYS), .base = draw_weight(state)};
    uint64_t *table;
    CUmodule module;
    made.count = draw(state, 2) == 0 ? 1 : 1 + (uint32_t)draw(state, MOST_READ);
    OK(cuMemHostAlloc((void **)&table, sizeof made.found, CU_MEMHOSTALLOC_DEVICEMAP));
    for (uint32_t i = 0; i < made.count; i++) {
        uint32_t read = draw(state, 2) == 0 ? made.base : draw_weight(state);
        made.found[i] = made.way == BY_STALE_DISTANCE ? draw_stray(state, made.base)
                                                      : task.weights[read].address;
        table[i] = made.found[i] - (made.way == BY_TABLE ? 0 : task.weights[made.base].address);
    }
    made.table = (CUdeviceptr)(uintptr_t)table;
    OK(cuModuleLoadData(&module, SIMCUDA_IMAGE));
    OK(cuModuleGetFunction(&made.kernel, module,
                           made.way == BY_TABLE ? "sim_gemm_array" : "sim_gemm_offsets"));
    if (draw(state, 2) == 1) {
        OK(cuStreamCreate(&made.stream, CU_STREAM_NON_BLOCKING));
    }
    return made;
}

static void went_or_faulted(CUresult result) {
    HOLDS(result == CUDA_SUCCESS || result == CUDA_ERROR_ILLEGAL_ADDRESS);
}

static void read_by(const struct reader *reader) {
    uint64_t count = reader->count;
    uint64_t bytes = TABLE_BYTES;
    uint64_t in = (uint64_t)(uintptr_t)(task.results + 256);
    uint64_t out = (uint64_t)(uintptr_t)(task.results + TABLE_SLOT);
    CUdeviceptr table = reader->table;
    void *by_table[] = {&table, &count, &bytes, &in, &out};
    void *by_distance[] = {&task.weights[reader->base].address, &table, &count, &bytes, &in, &out};
    went_or_faulted(cuLaunchKernel(reader->kernel, 1, 1, 1, 1, 1, 1, 0, reader->stream,
                                   reader->way == BY_TABLE ? by_table : by_distance, NULL));
}

static void reader(void) {
    load_all();
    uint64_t state = strtoull(getenv("READER"), NULL, 10);
    struct reader drawn = draw_reader(&state);
    for (uint64_t i = draw(&state, 3); i > 0; i--) {
        uint64_t job = begin(&task);
        pass(NULL);
        end(&task, job);
    }
    clear(&task);
    uint64_t job = begin(&task);
    for (uint32_t w = 0; w < task.count; w++) {
        went_or_faulted(launch(&task, w, w, NULL, 0));
        if (w == drawn.base) {
            read_by(&drawn);
        }
    }
    int code = tierline_job_end(task.client, job, 0);
    if (code != 0) {
        faulted(code);
        return;
    }
    HOLDS(drawn.way != BY_STALE_DISTANCE);
    uint64_t hash = 0;
    for (uint32_t i = 0; i < drawn.count; i++) {
        uint64_t at = drawn.found[i] - task.weights[0].address + task.weights[0].offset;
        hash = simcuda_hash(hash, task.content + at, TABLE_BYTES);
    }
    HOLDS(task.results[TABLE_SLOT] == hash);
    check(&task, 0, task.count, NULL);
}

/* Whether the driver gives these addresses to whoever wishes for them. */
static bool is_given(uint64_t address, uint64_t bytes) {
    CUdeviceptr given;
    OK(cuMemAddressReserve(&given, bytes, 0, address, 0));
    OK(cuMemAddressFree(given, bytes));
    return given == address;
}

/* Where weights lay before they moved, nothing else comes to lie while they are in the arena; what
 * the program still uses there is its own. Next to an arena lies nothing. */
static void old_addresses(void) {
    enum { MIB = 1 << 20 };
    load_all();
    CUdeviceptr moved;
    CUdeviceptr used;
    OK(cuMemAlloc(&moved, 8 * MIB));
    OK(cuMemAlloc(&used, 4 * MIB));
    OK(cuMemFree(moved));
    HOLDS(is_given(moved, 8 * MIB));
    tierline_place places[] = {{moved + 512, 3 * MIB}, {moved + 4 * MIB, 4 * MIB}, {used, MIB}};
    OK(tierline_vacated(task.client, task.arena, places, 3));
    for (uint64_t at = 0; at < 8 * MIB; at += 2 * MIB) {
        HOLDS(!is_given(moved + at, 2 * MIB));
    }
    OK(cuMemsetD8(used, 1, 4 * MIB));
    struct tables made = make_tables();
    uint64_t old[TABLE];
    for (uint32_t n = 0; n < TABLE; n++) {
        old[n] = moved + n * 256 * 1024;
    }
    OK(simcuda_upload(made.table, old, sizeof old));
    uint64_t size = extents * task.extent_bytes;
    uint64_t base = task.weights[0].address - task.weights[0].offset;
    HOLDS(!is_given(base - size, size));
    HOLDS(!is_given(base + size, size));
    uint64_t job = begin(&task);
    pass(NULL);
    read_by_table(&made, TABLE_SLOT);
    faulted(tierline_job_end(task.client, job, 0));
    HOLDS(tierline_vacated(task.client, 3, places, 1) == TIERLINE_E_STATE);
    HOLDS(tierline_vacated(task.client, TIERLINE_MAX_ARENAS, places, 1) == TIERLINE_E_ARGUMENT);
}

/* Jobs that stream as they always did, until one makes a table, between jobs or within it. */
static void tables_of_the_host(void) {
    load_all();
    struct tables made = make_tables();
    uint64_t addresses[TABLE];
    list_addresses(addresses);
    for (int i = 0; i < 4; i++) {
        clear(&task);
        uint64_t job = begin(&task);
        pass(NULL);
        check(&task, 0, task.count, NULL);
        HOLDS(end(&task, job).fetched_bytes == 0);
    }
    OK(simcuda_upload(made.table, addresses, sizeof addresses));
    for (int i = 0; i < 3; i++) {
        pass_with_table(&made);
    }
}

static void tables_within_a_job(void) {
    load_all();
    struct tables made = make_tables();
    uint64_t addresses[TABLE];
    list_addresses(addresses);
    for (int i = 0; i < 3; i++) {
        clear(&task);
        uint64_t job = begin(&task);
        pass(NULL);
        OK(cuMemcpyHtoDAsync(made.table, addresses, sizeof addresses, NULL));
        read_by_table(&made, TABLE_SLOT);
        check(&task, 0, task.count, NULL);
        check_table(TABLE_SLOT);
        end(&task, job);
    }
}

static void tables_word_by_word(void) {
    load_all();
    struct tables made = make_tables();
    for (uint32_t n = 0; n < TABLE; n++) {
        OK(cuStreamWriteValue64(NULL, made.table + n * sizeof(uint64_t), tabled(n)->address, 0));
    }
    for (int i = 0; i < 2; i++) {
        pass_with_table(&made);
    }
}

/* A table in a graph cannot be seen in time: the capture says so. One of weights that stream no
 * more can. */
static void tables_in_graphs(void) {
    load_all();
    struct tables made = make_tables();
    uint64_t addresses[TABLE];
    list_addresses(addresses);
    CUstream stream;
    CUgraph graph;
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    for (int i = 0; i < 2; i++) {
        OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
        CUresult result = cuMemcpyHtoDAsync(made.table, addresses, sizeof addresses, stream);
        HOLDS(result == (i == 0 ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS));
        OK(cuStreamEndCapture(stream, &graph));
        OK(cuGraphDestroy(graph));
        OK(simcuda_upload(made.table, addresses, sizeof addresses));
    }
    pass_with_table(&made);
}

/* One that a kernel makes, as for batched products: its weights are there until the next call that
 * names others. */
static void tables_of_the_device(void) {
    load_all();
    struct tables made = make_tables();
    for (int i = 0; i < 3; i++) {
        clear(&task);
        uint64_t job = begin(&task);
        for (uint32_t w = 0; w < task.count; w++) {
            for (uint64_t n = 0; n < TABLE; n++) {
                uint64_t at = made.table + n * sizeof(uint64_t);
                uint64_t one = 1;
                void *parameters[] = {&at, &task.weights[w].address, &one};
                OK(cuLaunchKernel(made.fill, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL));
            }
            read_by_table(&made, w);
        }
        OK(cuCtxSynchronize());
        for (uint32_t w = 0; w < task.count; w++) {
            uint64_t hash = 0;
            for (uint32_t n = 0; n < TABLE && task.weights[w].bytes >= TABLE_BYTES; n++) {
                hash = simcuda_hash(hash, task.content + task.weights[w].offset, TABLE_BYTES);
            }
            HOLDS(task.results[w] == hash || task.weights[w].bytes < TABLE_BYTES);
        }
        HOLDS(end(&task, job).fetched_bytes == 0);
    }
}

static uint32_t written(uint32_t *found) {
    uint32_t count = 0;
    OK(tierline_written(task.client, task.arena, found, MOST_WEIGHTS, &count));
    HOLDS(count <= MOST_WEIGHTS);
    return count;
}

/* Stores what was written again, as it is on the GPU, and says how many extents that were. */
static uint32_t store_written(void) {
    uint32_t extents_written[MOST_WEIGHTS];
    uint32_t count = written(extents_written);
    for (uint32_t i = 0; i < count; i++) {
        uint64_t at = extents_written[i] * task.extent_bytes;
        uint64_t left = task.weight_bytes - at;
        uint64_t bytes = left < task.extent_bytes ? left : task.extent_bytes;
        uint8_t *now = malloc(bytes);
        HOLDS(now != NULL);
        OK(cuMemcpyDtoH(now, task.weights[0].address + at, bytes));
        HOLDS(memcmp(now, task.content + at, bytes) == 0);
        OK(tierline_store(task.client, task.arena, extents_written[i], now, bytes));
        free(now);
    }
    HOLDS(written(extents_written) == 0);
    return count;
}

static void jobs_with_these_bytes(void) {
    for (int i = 0; i < 2; i++) {
        clear(&task);
        uint64_t job = begin(&task);
        pass(NULL);
        check(&task, 0, task.count, NULL);
        HOLDS(end(&task, job).fetched_bytes == 0);
    }
}

/* Between jobs a program loads other weights, or changes them in place, by copies, memsets and
 * kernels, in every extent; in a job by copies. */
static void exchanged(void) {
    load_all();
    struct tables made = make_tables();
    jobs_with_these_bytes();
    for (uint32_t w = 0; w < task.count; w++) {
        struct weight *weight = &task.weights[w];
        uint8_t *bytes = task.content + weight->offset;
        uint64_t value = 0x0101010101010101U * (w + 1);
        uint64_t half = weight->bytes / 16 * 8;
        uint64_t words = half / 8;
        uint64_t job = w % 5 == 4 ? begin(&task) : 0;
        switch (w % 5) {
        case 0:
            memset(bytes, (int)w + 1, half);
            OK(cuMemsetD8(weight->address, (unsigned char)(w + 1), half));
            break;
        case 1: {
            void *parameters[] = {&weight->address, &value, &words};
            memset(bytes, (int)w + 1, half);
            OK(cuLaunchKernel(made.fill, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL));
            break;
        }
        case 2: {
            const struct weight *other = &task.weights[w - 1];
            uint64_t both = other->bytes < weight->bytes ? other->bytes : weight->bytes;
            memcpy(bytes, task.content + other->offset, both);
            OK(cuMemcpyDtoD(weight->address, other->address, both));
            break;
        }
        default:
            memset(bytes, (int)w + 7, weight->bytes);
            OK(cuMemcpyHtoDAsync(weight->address, bytes, weight->bytes, NULL));
        }
        if (job != 0) {
            OK(launch(&task, w, w, NULL, 0));
            check(&task, w, w + 1, NULL);
            end(&task, job);
        }
        uint64_t refused = 0;
        HOLDS(tierline_job_begin(task.client, 0, 0, 0, UINT64_MAX >> 2, &refused) ==
              TIERLINE_E_WRITTEN);
        HOLDS(store_written() > 0);
        if (w % 4 == 0) {
            jobs_with_these_bytes();
        }
    }
    jobs_with_these_bytes();
    uint64_t copied = 0;
    OK(cuMemcpyDtoH(&copied, task.weights[1].address, sizeof copied)); /* reads change nothing */
    jobs_with_these_bytes();
}

/* How long launches take, as a profile needs it. */
static void timed(void) {
    load_all();
    uint64_t job = begin(&task);
    pass(NULL);
    end(&task, job);
    HOLDS(tierline_observer_reads(NULL, 0) == 0); /* nobody wants to know */
    tierline_observer_time(true);
    job = begin(&task);
    for (uint32_t w = 0; w < task.count; w++) {
        OK(launch(&task, w, w, NULL, 2000000));
        OK(launch(&task, w, w, NULL, 0)); /* not the first to read it */
    }
    tierline_time times[MOST_WEIGHTS];
    HOLDS(tierline_observer_times(times, MOST_WEIGHTS) == task.count);
    for (uint32_t w = 0; w < task.count; w++) {
        HOLDS(times[w].launch == 2 * w);
        HOLDS(times[w].end_ns > (w == 0 ? 0 : times[w - 1].end_ns) + 1500000);
    }
    end(&task, job);
    tierline_observer_time(false);
    HOLDS(tierline_observer_times(NULL, 0) == 0);
}

/* What launchers of kernels ask of each argument (Triton's: its device pointer) before the launch.
 */
static void described(uint64_t inside) {
    uint64_t base = task.weights[0].address;
    uint64_t bytes = extents * task.extent_bytes;
    CUdeviceptr begin = 0;
    CUdeviceptr same = 0;
    size_t size = 0;
    CUmemorytype type = CU_MEMORYTYPE_HOST;
    CUcontext owner = NULL;
    unsigned int managed = 2;
    unsigned int mapped = 2;
    unsigned int access = 0;
    OK(cuMemGetAddressRange(&begin, &size, inside));
    HOLDS(begin == base && size == bytes);
    begin = 0;
    OK(cuPointerGetAttribute(&begin, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, inside));
    OK(cuPointerGetAttribute(&size, CU_POINTER_ATTRIBUTE_RANGE_SIZE, inside));
    OK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, inside));
    OK(cuPointerGetAttribute(&owner, CU_POINTER_ATTRIBUTE_CONTEXT, inside));
    HOLDS(begin == base && size == bytes && type == CU_MEMORYTYPE_DEVICE && owner == context);
    OK(cuPointerGetAttribute(&same, CU_POINTER_ATTRIBUTE_DEVICE_POINTER, inside));
    HOLDS(same == inside);
    OK(cuPointerGetAttribute(&managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, inside));
    OK(cuPointerGetAttribute(&mapped, CU_POINTER_ATTRIBUTE_MAPPED, inside));
    OK(cuPointerGetAttribute(&access, CU_POINTER_ATTRIBUTE_ACCESS_FLAGS, inside));
    HOLDS(managed == 0 && mapped == 1 && access == CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
}

/* The program sees one allocation of the device's, not the extents that back it; also while a job
 * hides those that its latest call does not name. */
static void one_allocation(void) {
    load_all();
    uint64_t inside = task.weights[task.count - 1].address;
    HOLDS(inside >> 40 != 0); /* where no pair of small numbers looks like an address */
    described(inside);
    uint64_t job = begin(&task);
    for (uint32_t w = 0; w < task.count; w++) {
        OK(launch(&task, w, w, NULL, 0));
        for (uint32_t other = 0; other < task.count; other++) {
            described(task.weights[other].address);
        }
    }
    end(&task, job);
    check(&task, 0, task.count, NULL);
    described(inside);
    CUdeviceptr begin = 0;
    size_t size = 0;
    OK(tierline_free(task.client, 0));
    HOLDS(cuMemGetAddressRange(&begin, &size, inside) != CUDA_SUCCESS);
}

static void forking(void) {
    load_all();
    pass(NULL);
    check(&task, 0, task.count, NULL);
    pid_t child = fork();
    if (child == 0) {
        uint64_t job;
        _exit(tierline_job_begin(task.client, 0, 0, 0, 1, &job) == TIERLINE_E_FORKED ? 0 : 1);
    }
    int status = 1;
    HOLDS(waitpid(child, &status, 0) == child && status == 0);
    clear(&task);
    pass(NULL);
    check(&task, 0, task.count, NULL);
}

static void closing(void) {
    for (int i = 0; i < 2; i++) {
        load_all();
        pass(NULL);
        check(&task, 0, task.count, NULL);
        tierline_close(task.client);
        free(task.content);
        OK(cuMemsetD8((CUdeviceptr)(uintptr_t)task.results, 0, 8)); /* nothing is gated any more */
        task.client = NULL;
    }
}

static void agent_killed(void) {
    load_all();
    uint64_t careful = begin(&task); /* in the first job the CPU goes along with the GPU */
    pass(NULL);
    end(&task, careful);
    for (int i = 0; i < 2; i++) {
        clear(&task);
        uint64_t job = begin(&task);
        for (uint32_t w = 0; w < task.count; w++) {
            OK(launch(&task, w, w, NULL, 20000000));
        }
        say("streaming");
        check(&task, 0, task.count, NULL);
        end(&task, job);
        say("between");
    }
    clear(&task);
    pass(NULL);
    check(&task, 0, task.count, NULL);
}

/* The agent's copies fail in the middle of a job. */
static void revoked(void) {
    load_all();
    say("loaded");
    uint64_t job = begin(&task);
    pass(NULL);
    check(&task, 0, task.count, NULL);
    HOLDS(tierline_job_end(task.client, job, 0) == TIERLINE_E_REVOKED);
    for (int i = 0; i < 2; i++) {
        clear(&task);
        job = begin(&task);
        pass(NULL);
        check(&task, 0, task.count, NULL);
        HOLDS(end(&task, job).fetched_bytes == 0);
    }
}

/* The same, while the last launches still read the ring, which somebody else waits for. */
static void revoked_slow(void) {
    load_all();
    say("loaded");
    uint64_t job = begin(&task);
    for (uint32_t w = 0; w < task.count; w++) {
        OK(launch(&task, w, w, NULL, w + 4 >= task.count ? 300000000 : 0));
    }
    say("launched");
    check(&task, 0, task.count, NULL);
    HOLDS(tierline_job_end(task.client, job, 0) == TIERLINE_E_REVOKED);
}

/* The same, heard of while the job is begun: the copies of the job before are still being dropped.
 */
static void revoked_early(void) {
    load_all();
    uint32_t last = task.count - 1;
    uint64_t job = begin(&task);
    OK(launch(&task, last, last, NULL, 0)); /* far ahead of its turn: it gets copies */
    check(&task, last, task.count, NULL);
    end(&task, job);
    say("copied");
    clear(&task);
    job = begin(&task);
    for (uint32_t w = 0; w < task.count; w++) {
        OK(launch(&task, w, w, NULL, 0));
    }
    check(&task, 0, task.count, NULL);
    HOLDS(tierline_job_end(task.client, job, 0) == TIERLINE_E_REVOKED);
}

struct busy {
    CUcontext context;
    atomic_bool over;
    atomic_uint calls;
};

/* A thread whose calls name no weights; some are at the driver for long. */
static void *keep_calling(void *argument) {
    struct busy *busy = argument;
    OK(cuCtxSetCurrent(busy->context));
    CUdeviceptr memory;
    uint64_t word = 1;
    OK(cuMemAlloc(&memory, sizeof word));
    while (!atomic_load(&busy->over)) {
        OK(cuMemcpyHtoD(memory, &word, sizeof word));
        atomic_fetch_add(&busy->calls, 1);
    }
    OK(cuMemFree(memory));
    return NULL;
}

static void *keep_waiting(void *argument) {
    struct busy *busy = argument;
    uint64_t word;
    uint64_t duration_ns = 3000000;
    void *parameters[] = {&duration_ns};
    CUdeviceptr memory;
    OK(cuCtxSetCurrent(busy->context));
    OK(cuMemAlloc(&memory, sizeof word));
    while (!atomic_load(&busy->over)) {
        OK(cuLaunchKernel(task.spin, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL));
        OK(cuMemcpyDtoH(&word, memory, sizeof word));
        atomic_fetch_add(&busy->calls, 1);
    }
    OK(cuMemFree(memory));
    return NULL;
}

/* Jobs that the program begins, while threads never cease to call without one: each gets its turn,
 * and its bytes. */
static void small_calls(void) {
    load_all();
    struct busy busy = {.context = context};
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) {
        HOLDS(pthread_create(&threads[i], NULL, keep_calling, &busy) == 0);
    }
    for (int i = 0; i < 100; i++) {
        clear(&task);
        uint64_t job = begin(&task);
        OK(launch(&task, 0, 0, NULL, 0));
        check(&task, 0, 1, NULL);
        end(&task, job);
    }
    atomic_store(&busy.over, true);
    for (int i = 0; i < 2; i++) {
        pthread_join(threads[i], NULL);
    }
}

/* Calls are at the driver while the last arena goes: they are not forgotten there. */
static void freed_in_a_call(void) {
    load_all();
    for (int i = 0; i < 3; i++) {
        struct busy busy = {.context = context};
        pthread_t thread;
        HOLDS(pthread_create(&thread, NULL, keep_waiting, &busy) == 0);
        while (atomic_load(&busy.calls) < 3) {
        }
        OK(tierline_free(task.client, 0));
        unsigned int before = atomic_load(&busy.calls);
        while (atomic_load(&busy.calls) - before < 3) {
        }
        atomic_store(&busy.over, true);
        pthread_join(thread, NULL);
        struct task again;
        load_another(&again, &task, 0, extents, 1);
        again.spin = task.spin;
        task = again;
        uint64_t job = begin(&task);
        OK(launch(&task, 0, 0, NULL, 0));
        check(&task, 0, 1, NULL);
        end(&task, job);
    }
}

/* Jobs long enough to be preempted. */
static void preempted(void) {
    load_all();
    CUstream stream;
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    for (int i = 0; i < 30; i++) {
        clear(&task);
        uint64_t job = begin(&task);
        for (uint32_t w = 0; w < task.count; w++) {
            OK(launch(&task, w, w, stream, 300000));
        }
        check(&task, 0, task.count, stream);
        HOLDS(end(&task, job).fetched_bytes == 0);
    }
}

static void unswappable(void) {
    CUdeviceptr before;
    CUdeviceptr other;
    use_gpu();
    OK(cuMemAllocAsync(&before, 6 << 20, NULL));
    load_all();
    say("held");
    OK(cuMemAllocAsync(&other, 4 << 20, NULL));
    say("held more");
    OK(cuMemFreeAsync(before, NULL));
    OK(cuMemFreeAsync(other, NULL));
    say("freed");
}

/* Says how much of the GPU's memory all processes use, and waits. */
static void say_used(void) {
    char word[64];
    size_t free_bytes;
    size_t total_bytes;
    OK(cuMemGetInfo(&free_bytes, &total_bytes));
    snprintf(word, sizeof word, "%zu", total_bytes - free_bytes);
    say(word);
}

/* Memory that the process has for itself: before its weights are the agent's, for a moment, and
 * after that. */
static void held(void) {
    CUdeviceptr before;
    CUdeviceptr passing;
    CUdeviceptr after;
    CUstream stream;
    context = use_gpu();
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuMemAlloc(&before, 24 << 20));
    load(&task, socket_path, 0, extents, 1);
    say_used();
    OK(cuMemAlloc(&passing, 8 << 20));
    OK(cuMemFree(passing));
    OK(cuMemFree(before));
    uint64_t job = begin(&task);
    pass(stream);
    (void)end(&task, job);
    say_used();
    OK(cuMemAlloc(&after, 4 << 20));
    say_used();
    OK(cuMemFree(after));
    say_used();
}

int main(int argc, char **argv) {
    static const struct scenario scenarios[] = {
        {"in_order", in_order},
        {"named_again", named_again},
        {"named_far_ahead", named_far_ahead},
        {"default_streams", default_streams},
        {"without_a_job", without_a_job},
        {"skipping", skipping},
        {"skipping_far", skipping_far},
        {"passes", passes},
        {"random_order", random_order},
        {"turned", turned},
        {"reversed", reversed},
        {"several_streams", several_streams},
        {"streams_that_end", streams_that_end},
        {"threads", threads},
        {"copies", copies},
        {"out_of_reach", out_of_reach},
        {"two_arenas", two_arenas},
        {"two_roots", two_roots},
        {"exchanged", exchanged},
        {"unseen_table", unseen_table},
        {"unseen_distance", unseen_distance},
        {"unseen_later", unseen_later},
        {"unseen_between", unseen_between},
        {"reader", reader},
        {"old_addresses", old_addresses},
        {"tables_of_the_host", tables_of_the_host},
        {"tables_within_a_job", tables_within_a_job},
        {"tables_word_by_word", tables_word_by_word},
        {"tables_in_graphs", tables_in_graphs},
        {"tables_of_the_device", tables_of_the_device},
        {"timed", timed},
        {"one_allocation", one_allocation},
        {"forking", forking},
        {"closing", closing},
        {"agent_killed", agent_killed},
        {"revoked", revoked},
        {"revoked_slow", revoked_slow},
        {"revoked_early", revoked_early},
        {"small_calls", small_calls},
        {"freed_in_a_call", freed_in_a_call},
        {"preempted", preempted},
        {"unswappable", unswappable},
        {"held", held},
    };
    HOLDS(argc == 4);
    socket_path = argv[2];
    extents = (uint32_t)strtoul(argv[3], NULL, 10);
    return run_scenario(argv[1], scenarios, sizeof scenarios / sizeof *scenarios, &task);
}
