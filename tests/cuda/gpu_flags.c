/* A plain CUDA program under policy Swap that writes and awaits single words in stream order, as
 * programs do that synchronise by flags, on streams of every kind. It knows nothing of Tierline,
 * has one object in swapped memory, checks every byte of it, and obeys lines on stdin, so that
 * another program can have the device between any two of its calls. */
#include <dlfcn.h>
#include <pthread.h>
#include <string.h>
#include <time.h>

#include "gpu_kit.h"
#include "simcuda.h"
#include "simcuda_upload.h"

enum { BYTES = 1 << 20, WORDS = BYTES / 8, WAYS = 20, LOOKS = 4, CROWD = 150 };

/* Which stream is given work. */
enum kind {
    OWN,     /* the thread's own default stream, by its handle */
    DEFAULT, /* the same, as what the default is */
    ENDED,   /* that of a thread that has ended */
    GONE,    /* one that was destroyed when it had its work */
    LAST,    /* the last of a crowd */
    KINDS
};

typedef CUresult short_word(CUstream, CUdeviceptr, cuuint32_t, unsigned int);
typedef CUresult long_word(CUstream, CUdeviceptr, cuuint64_t, unsigned int);
typedef CUresult several_words(CUstream, unsigned int, CUstreamBatchMemOpParams *, unsigned int);

static CUcontext context;
static CUdeviceptr object;
static uint64_t shadow[WORDS]; /* what the object holds */
static CUstream stream;
static CUstream crowd[CROWD];
static CUfunction spin;
static uint32_t *flag; /* pinned */

static void prepare(void) {
    CUmodule module;
    context = use_gpu();
    OK(cuModuleLoadData(&module, SIMCUDA_IMAGE));
    OK(cuModuleGetFunction(&spin, module, "sim_spin"));
    OK(cuMemHostAlloc((void **)&flag, sizeof *flag, CU_MEMHOSTALLOC_DEVICEMAP));
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    for (int i = 0; i < CROWD; i++) {
        OK(cuStreamCreate(&crowd[i], CU_STREAM_NON_BLOCKING));
    }
    OK(cuMemAlloc(&object, BYTES));
    for (uint64_t i = 0; i < WORDS; i++) {
        shadow[i] = i * 0x9e3779b97f4a7c15U;
    }
    OK(simcuda_upload(object, shadow, BYTES));
}

static void check_object(void) {
    static uint64_t seen[WORDS];
    OK(cuMemcpyDtoH(seen, object, BYTES));
    HOLDS(memcmp(seen, shadow, BYTES) == 0);
}

/* A symbol of the driver by any of its names: the first version's and the second's, for either
 * default stream. */
static void *spelled(const char *name, bool second, bool per_thread) {
    char symbol[64];
    snprintf(symbol, sizeof symbol, "%s%s%s", name, second ? "_v2" : "", per_thread ? "_ptsz" : "");
    void *found = dlsym(RTLD_DEFAULT, symbol);
    HOLDS(found != NULL);
    return found;
}

/* One word by one of the ways in which programs write it and wait for it. A wait that is not for
 * what the program wrote itself would never end. */
static void touch(uint32_t way) {
    bool second = way % 2 == 1;
    bool per_thread = way / 2 % 2 == 1;
    CUstream on = per_thread ? NULL : stream;
    uint32_t at = way * 1001;
    CUdeviceptr address = object + at * 8UL;
    uint64_t value = shadow[at] + 1;
    uint32_t low = (uint32_t)value;
    switch (way / 4) {
    case 0:
        OK(((short_word *)spelled("cuStreamWriteValue32", second, per_thread))(on, address, low,
                                                                               0));
        memcpy(&shadow[at], &low, sizeof low);
        break;
    case 1:
        OK(((long_word *)spelled("cuStreamWriteValue64", second, per_thread))(on, address, value,
                                                                              0));
        shadow[at] = value;
        break;
    case 2:
        OK(((short_word *)spelled("cuStreamWaitValue32", second, per_thread))(
            on, address, (uint32_t)shadow[at], CU_STREAM_WAIT_VALUE_EQ));
        break;
    case 3:
        OK(((long_word *)spelled("cuStreamWaitValue64", second, per_thread))(
            on, address, shadow[at], CU_STREAM_WAIT_VALUE_EQ));
        break;
    default: {
        CUstreamBatchMemOpParams both[2] = {
            {.waitValue = {.operation = CU_STREAM_MEM_OP_WAIT_VALUE_64,
                           .address = address,
                           .value64 = shadow[at],
                           .flags = CU_STREAM_WAIT_VALUE_EQ}},
            {.writeValue = {.operation = CU_STREAM_MEM_OP_WRITE_VALUE_64,
                            .address = address,
                            .value64 = value}}};
        OK(((several_words *)spelled("cuStreamBatchMemOp", second, per_thread))(on, 2, both, 0));
        shadow[at] = value;
    }
    }
    OK(cuStreamSynchronize(per_thread ? CU_STREAM_PER_THREAD : stream));
}

/* ---- work on a stream of each kind, and nobody waits for it */

typedef void give_work(CUstream on, bool per_thread);

/* The object's word number 7 gets its value when the GPU has spun. */
static void write_late(CUstream on, bool per_thread) {
    typedef CUresult launch_kernel(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned,
                                   unsigned, unsigned, CUstream, void **, void **);
    uint64_t duration_ns = 100000000;
    void *parameters[] = {&duration_ns};
    OK(((launch_kernel *)spelled("cuLaunchKernel", false, per_thread))(spin, 1, 1, 1, 1, 1, 1, 0,
                                                                       on, parameters, NULL));
    OK(((long_word *)spelled("cuStreamWriteValue64", true, per_thread))(on, object + 7 * 8UL,
                                                                        ++shadow[7], 0));
}

static void stand_at_flag(CUstream on, bool per_thread) {
    OK(((short_word *)spelled("cuStreamWaitValue32", true, per_thread))(
        on, (CUdeviceptr)(uintptr_t)flag, 1, CU_STREAM_WAIT_VALUE_EQ));
}

static void *in_thread(void *work) {
    OK(cuCtxSetCurrent(context));
    (*(give_work **)work)(CU_STREAM_PER_THREAD, false);
    return NULL;
}

static void give(give_work *work, enum kind kind) {
    pthread_t thread;
    CUstream fresh;
    switch (kind) {
    case OWN:
        work(CU_STREAM_PER_THREAD, false);
        break;
    case DEFAULT:
        work(NULL, true);
        break;
    case ENDED:
        OK(pthread_create(&thread, NULL, in_thread, &work));
        OK(pthread_join(thread, NULL));
        break;
    case GONE:
        OK(cuStreamCreate(&fresh, CU_STREAM_NON_BLOCKING));
        work(fresh, false);
        OK(cuStreamDestroy(fresh));
        break;
    default:
        for (int i = 0; i < CROWD - 1; i++) {
            OK(cuMemsetD8Async(object + (1000UL + (unsigned)i) * 8, (unsigned char)shadow[1000 + i],
                               1, crowd[i]));
        }
        work(crowd[CROWD - 1], false);
    }
}

/* Until the library has looked several times whether the job is over, or has begun to end it. */
static void let_it_look(void) {
    uint64_t looks = simcuda_calls("cuCtxPushCurrent_v2");
    uint64_t waits = simcuda_calls("cuCtxSynchronize");
    while (simcuda_calls("cuCtxPushCurrent_v2") < looks + LOOKS &&
           simcuda_calls("cuCtxSynchronize") == waits) {
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
}

/* A stream stands at a flag which this program sets by its last call: those before it are made. */
static void stand(enum kind kind) {
    static uint64_t seen;
    *flag = 0;
    give(stand_at_flag, kind);
    let_it_look();
    OK(cuStreamWriteValue64(stream, object, ++shadow[0], 0));
    OK(cuMemcpyDtoHAsync(&seen, object, sizeof seen, stream));
    OK(cuStreamSynchronize(stream));
    HOLDS(seen == shadow[0]);
    OK(cuStreamWriteValue32(stream, (CUdeviceptr)(uintptr_t)flag, 1, 0));
    OK(cuCtxSynchronize());
}

static void serve(void) {
    char line[64];
    uint32_t way = 0;
    uint32_t kinds[2] = {0, 0};
    prepare();
    puts("ready");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin) != NULL && strcmp(line, "end\n") != 0) {
        if (strcmp(line, "check\n") == 0) {
            check_object();
        } else if (strcmp(line, "touch\n") == 0) {
            touch(way++ % WAYS);
        } else if (strcmp(line, "write\n") == 0) {
            give(write_late, kinds[0]++ % KINDS);
        } else {
            HOLDS(strcmp(line, "stand\n") == 0);
            stand(kinds[1]++ % KINDS);
        }
        puts("done");
        fflush(stdout);
    }
    OK(cuMemFree(object));
}

int main(int argc, char **argv) {
    static const struct scenario scenarios[] = {{"serve", serve}};
    struct task none = {0};
    HOLDS(argc == 3);
    return run_scenario(argv[1], scenarios, sizeof scenarios / sizeof *scenarios, &none);
}
