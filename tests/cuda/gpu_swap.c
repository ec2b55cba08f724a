/* A plain CUDA program under policy Swap: it knows nothing of Tierline, and checks every byte of
 * its memory. The first argument names a scenario; `serve` obeys lines on stdin, so that several
 * programs can take turns. Allocations of odd kinds and frees are its own business; what the memory
 * of the program and of others becomes meanwhile is the test's. */
#include <pthread.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "gpu_kit.h"
#include "simcuda.h"
#include "simcuda_upload.h"

enum { OBJECTS = 7, STREAMS = 3, MIB = 1 << 20 };

struct object {
    CUdeviceptr address;
    uint64_t bytes;
    uint8_t *shadow; /* what the program wrote last */
};

static struct object objects[OBJECTS];
static CUfunction hash, fill, spin;
static CUstream streams[STREAMS]; /* the first is the default stream */
static uint64_t *results;         /* pinned, one an object */
static uint64_t seed;

static uint64_t next(void) {
    seed = seed * 6364136223846793005U + 1442695040888963407U;
    return seed >> 24;
}

static void prepare(void) {
    CUmodule module;
    use_gpu();
    OK(cuModuleLoadData(&module, SIMCUDA_IMAGE));
    OK(cuModuleGetFunction(&hash, module, "sim_hash"));
    OK(cuModuleGetFunction(&fill, module, "sim_fill"));
    OK(cuModuleGetFunction(&spin, module, "sim_spin"));
    OK(cuMemHostAlloc((void **)&results, OBJECTS * sizeof *results, CU_MEMHOSTALLOC_DEVICEMAP));
    for (int i = 1; i < STREAMS; i++) {
        OK(cuStreamCreate(&streams[i], CU_STREAM_NON_BLOCKING));
    }
}

static CUresult launch_hash(uint64_t address, uint64_t bytes, uint64_t *out, CUstream stream) {
    uint64_t to = (uint64_t)(uintptr_t)out;
    void *parameters[] = {&address, &bytes, &to};
    return cuLaunchKernel(hash, 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL);
}

static void launch_spin(uint64_t duration_ns, CUstream stream) {
    void *parameters[] = {&duration_ns};
    OK(cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL));
}

/* By each of the ways in which programs allocate. */
static void allocate(struct object *object, uint32_t way) {
    size_t pitch = 0;
    object->bytes = (MIB + next() % MIB) / 8 * 8;
    switch (way % 3) {
    case 0:
        OK(cuMemAlloc(&object->address, object->bytes));
        break;
    case 1:
        OK(cuMemAllocAsync(&object->address, object->bytes, streams[1]));
        break;
    default:
        OK(cuMemAllocPitch(&object->address, &pitch, 1000, object->bytes / 1024, 4));
        HOLDS(pitch == 1024);
        object->bytes = object->bytes / 1024 * 1024;
    }
    object->shadow = malloc(object->bytes);
    HOLDS(object->shadow != NULL);
}

static void release(struct object *object, uint32_t way) {
    if (way % 3 == 1) {
        OK(cuMemFreeAsync(object->address, streams[1]));
    } else {
        OK(cuMemFree(object->address));
    }
    free(object->shadow);
}

/* By each of the ways in which programs write. */
static void write_object(struct object *object, uint32_t way) {
    uint64_t value = next();
    for (uint64_t i = 0; i < object->bytes; i += 8) {
        uint64_t word = way % 3 == 0 ? value : value + i;
        memcpy(object->shadow + i, &word, 8);
    }
    if (way % 3 == 0) {
        uint64_t words = object->bytes / 8;
        void *parameters[] = {&object->address, &value, &words};
        OK(cuLaunchKernel(fill, 1, 1, 1, 1, 1, 1, 0, streams[2], parameters, NULL));
        OK(cuStreamSynchronize(streams[2]));
    } else if (way % 3 == 1) {
        OK(simcuda_upload(object->address, object->shadow, object->bytes));
    } else {
        OK(cuMemcpyHtoDAsync(object->address, object->shadow, object->bytes, streams[1]));
        OK(cuStreamSynchronize(streams[1]));
    }
}

static void fill_all(void) {
    for (uint32_t i = 0; i < OBJECTS; i++) {
        allocate(&objects[i], i);
        write_object(&objects[i], i);
    }
}

static void expect_all(void) {
    for (int i = 0; i < OBJECTS; i++) {
        HOLDS(results[i] == simcuda_hash(0, objects[i].shadow, objects[i].bytes));
        results[i] = 0;
    }
}

static void launch_all(void) {
    for (int i = 0; i < OBJECTS; i++) {
        OK(launch_hash(objects[i].address, objects[i].bytes, &results[i], streams[i % STREAMS]));
    }
}

static void check_all(void) {
    launch_all();
    OK(cuCtxSynchronize());
    expect_all();
}

static void copy_out(void) {
    for (int i = 0; i < OBJECTS; i++) {
        uint8_t *copy = malloc(objects[i].bytes);
        HOLDS(copy != NULL);
        OK(cuMemcpyDtoH(copy, objects[i].address, objects[i].bytes));
        HOLDS(memcmp(copy, objects[i].shadow, objects[i].bytes) == 0);
        free(copy);
    }
}

static CUgraphExec capture_all(void) {
    CUgraph graph;
    CUgraphExec exec;
    OK(cuStreamBeginCapture(streams[1], CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    for (int i = 0; i < OBJECTS; i++) {
        OK(launch_hash(objects[i].address, objects[i].bytes, &results[i], streams[1]));
    }
    OK(cuStreamEndCapture(streams[1], &graph));
    OK(cuGraphInstantiate(&exec, graph, 0));
    OK(cuGraphDestroy(graph));
    return exec;
}

static void obey(const char *line) {
    static CUgraphExec exec;
    static uint32_t turn;
    if (strcmp(line, "check\n") == 0) {
        check_all();
    } else if (strcmp(line, "copy\n") == 0) {
        copy_out();
    } else if (strcmp(line, "graph\n") == 0) {
        exec = exec == NULL ? capture_all() : exec;
        OK(cuGraphLaunch(exec, streams[2]));
        OK(cuStreamSynchronize(streams[2]));
        expect_all();
    } else if (strcmp(line, "write\n") == 0) {
        for (uint32_t i = 0; i < OBJECTS; i++) {
            write_object(&objects[i], i + turn);
        }
    } else if (strcmp(line, "renew\n") == 0) { /* other objects, and another graph of them */
        for (uint32_t i = turn % 2; i < OBJECTS; i += 2) {
            release(&objects[i], i);
            allocate(&objects[i], i);
            write_object(&objects[i], i);
        }
        if (exec != NULL) {
            OK(cuGraphExecDestroy(exec));
            exec = NULL;
        }
    } else if (strcmp(line, "long\n") == 0) { /* a job that the test may disturb */
        launch_spin(100000000, streams[1]);
        puts("running");
        fflush(stdout);
        check_all();
    } else {
        HOLDS(!"a known command");
    }
    turn++;
}

static void serve(void) {
    char line[64];
    prepare();
    fill_all();
    puts("ready");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin) != NULL && strcmp(line, "end\n") != 0) {
        obey(line);
        puts("done");
        fflush(stdout);
    }
    for (uint32_t i = 0; i < OBJECTS; i++) {
        release(&objects[i], i);
    }
}

/* Each way in which CUDA gives memory to another process or device is refused before the driver. */
static void give_to_others(CUdeviceptr address) {
    CUipcMemHandle ticket;
    CUmemPoolPtrExportData pointer;
    CUmemGenericAllocationHandle handle;
    int descriptor;
    HOLDS(cuIpcGetMemHandle(&ticket, address) == CUDA_ERROR_NOT_SUPPORTED);
    HOLDS(cuMemPoolExportPointer(&pointer, address) == CUDA_ERROR_NOT_SUPPORTED);
    HOLDS(cuMemGetHandleForAddressRange(&descriptor, address, 2 * MIB,
                                        CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD,
                                        0) == CUDA_ERROR_NOT_SUPPORTED);
    HOLDS(cuMulticastBindAddr(1, 0, address, 2 * MIB, 0) == CUDA_ERROR_NOT_SUPPORTED);
    HOLDS(cuMemRetainAllocationHandle(&handle, (void *)(uintptr_t)address) ==
          CUDA_ERROR_INVALID_VALUE);
    HOLDS(simcuda_unsupported_calls() == 0 && simcuda_calls("cuIpcGetMemHandle") == 0);
}

/* What the program is told of its memory is what the driver would say of its own. */
static void attributes(void) {
    prepare();
    CUdeviceptr address;
    CUdeviceptr other;
    OK(cuMemAlloc(&address, 3 * MIB));
    OK(cuMemAlloc(&other, 1000));
    CUdeviceptr base = 0;
    size_t bytes = 0;
    OK(cuMemGetAddressRange(&base, &bytes, address + 5));
    HOLDS(base == address && bytes == 3 * MIB);
    unsigned int type = 0;
    OK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address));
    HOLDS(type == CU_MEMORYTYPE_DEVICE);
    CUdeviceptr same = 0; /* as launchers of kernels ask, while the task is away */
    unsigned int managed = 2;
    OK(cuPointerGetAttribute(&same, CU_POINTER_ATTRIBUTE_DEVICE_POINTER, address + 5));
    OK(cuPointerGetAttribute(&managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, address));
    HOLDS(same == address + 5 && managed == 0);
    CUcontext context = NULL;
    CUcontext current = NULL;
    OK(cuCtxGetCurrent(&current));
    OK(cuPointerGetAttribute(&context, CU_POINTER_ATTRIBUTE_CONTEXT, other));
    HOLDS(context == current);
    unsigned long long ids[2] = {0, 0};
    OK(cuPointerGetAttribute(&ids[0], CU_POINTER_ATTRIBUTE_BUFFER_ID, address));
    OK(cuPointerGetAttribute(&ids[1], CU_POINTER_ATTRIBUTE_BUFFER_ID, other));
    HOLDS(ids[0] != ids[1]);
    give_to_others(address);
    size_t free_bytes = 0;
    size_t total_bytes = 0;
    OK(cuMemGetInfo(&free_bytes, &total_bytes));
    HOLDS(total_bytes == 12 * MIB && free_bytes == 9 * MIB - 1000);
    OK(cuMemFree(other));
    HOLDS(cuMemFree(other) == CUDA_ERROR_INVALID_VALUE);
    HOLDS(cuMemFree(address + 512) == CUDA_ERROR_INVALID_VALUE);
    OK(cuMemFree(0));
    HOLDS(simcuda_calls("cuMemAlloc_v2") == 0);
    OK(cuMemFree(address));
    tierline_held held;
    tierline_interposer_held(&held);
    HOLDS(held.charged_bytes == 0 && held.refused_exports == 4);
}

/* TIERLINE_SWAP_OBJECTS=1,3-4, TIERLINE_SWAP=4Mi, a budget of 12 MiB. */
static void chosen(void) {
    prepare();
    CUdeviceptr at[6];
    for (int i = 0; i < 6; i++) {
        OK(cuMemAlloc(&at[i], MIB));
        HOLDS((simcuda_calls("cuMemAlloc_v2") == 1) == (i < 2)); /* 0 | 2 | 5 */
    }
    HOLDS(simcuda_calls("cuMemAlloc_v2") == 3);
    for (int i = 0; i < 6; i++) {
        OK(cuMemFree(at[i]));
    }
}

/* More than the workspace holds stays on the device, within the budget; what was freed in stream
 * order finds its room again. */
static void overflowing(void) {
    prepare();
    CUdeviceptr one;
    CUdeviceptr two;
    OK(cuMemAlloc(&one, 3 * MIB));
    OK(cuMemAlloc(&two, 3 * MIB)); /* of 4 MiB */
    HOLDS(simcuda_calls("cuMemAlloc_v2") == 1);
    HOLDS(cuMemAlloc(&two, 7 * MIB) == CUDA_ERROR_OUT_OF_MEMORY); /* of a budget of 12 MiB */
    launch_spin(20000000, streams[1]);
    OK(cuMemFreeAsync(one, streams[1]));
    OK(cuMemAllocAsync(&one, 3 * MIB, streams[2]));
    HOLDS(simcuda_calls("cuMemAllocAsync") == 0);
    OK(cuMemFreeAsync(one, streams[2]));
    CUmemoryPool pool;
    OK(cuDeviceGetDefaultMemPool(&pool, 0));
    OK(cuMemAllocFromPoolAsync(&one, MIB, pool, streams[1]));
    HOLDS(simcuda_calls("cuMemAllocFromPoolAsync") == 0);
    OK(cuMemFreeAsync(one, streams[1]));
    OK(cuCtxSynchronize());
}

/* Every call of the program's threads is under the lease, whichever of them began the job. */
static void *work(void *argument) {
    CUcontext context;
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuCtxSetCurrent(context));
    struct object *object = argument;
    uint64_t *result;
    OK(cuMemHostAlloc((void **)&result, 8, CU_MEMHOSTALLOC_DEVICEMAP));
    for (int i = 0; i < 50; i++) {
        OK(launch_hash(object->address, object->bytes, result, CU_STREAM_PER_THREAD));
        OK(cuStreamSynchronize(CU_STREAM_PER_THREAD));
        HOLDS(*result == simcuda_hash(0, object->shadow, object->bytes));
        *result = 0;
    }
    return NULL;
}

static void threads(void) {
    prepare();
    fill_all();
    pthread_t thread[4];
    for (int i = 0; i < 4; i++) {
        OK(pthread_create(&thread[i], NULL, work, &objects[i]));
    }
    for (int i = 0; i < 4; i++) {
        OK(pthread_join(thread[i], NULL));
    }
}

static uint64_t jobs_of(tierline_client *client) {
    tierline_statistics statistics;
    OK(tierline_get_statistics(client, &statistics));
    return statistics.jobs;
}

/* The library's own interface joins the program's client. */
static void explicit_jobs(void) {
    prepare();
    tierline_client *client = NULL;
    OK(tierline_connect_device(getenv("TIERLINE_SOCKET"), "swap", TIERLINE_DEVICE_CUDA, &client));
    uint64_t job = 0;
    OK(tierline_job_begin(client, TIERLINE_NO_ARENA, 0, 0, UINT64_MAX >> 2, &job));
    fill_all();
    for (int i = 0; i < 20; i++) {
        check_all();
    }
    HOLDS(jobs_of(client) == 0);
    OK(tierline_job_end(client, job, 0));
    HOLDS(jobs_of(client) == 1);
    tierline_close(client);
    check_all(); /* with the lease, and not counted: this program says what its jobs are */
    OK(tierline_job_begin(client, TIERLINE_NO_ARENA, 0, 0, UINT64_MAX >> 2, &job));
    HOLDS(jobs_of(client) == 1);
    OK(tierline_job_end(client, job, 0));
}

/* A child of fork has neither the lease nor the connection; the parent keeps both. */
static void forking(void) {
    prepare();
    fill_all();
    pid_t child = fork();
    if (child == 0) {
        CUdeviceptr address;
        _exit(cuMemAlloc(&address, MIB) != CUDA_SUCCESS ? 0 : 1);
    }
    int status = 1;
    HOLDS(waitpid(child, &status, 0) == child && status == 0);
    check_all();
}

/* The primary context is reset: its memory is gone, and the next one has the same workspace. */
static void resetting(void) {
    for (int i = 0; i < 2; i++) {
        prepare();
        fill_all();
        check_all();
        HOLDS(simcuda_calls("cuMemAlloc_v2") == 0);
        OK(cuDevicePrimaryCtxReset(0));
        for (int o = 0; o < OBJECTS; o++) {
            free(objects[o].shadow);
        }
    }
}

/* Without an agent: TIERLINE_REQUIRED decides. */
static void without_agent(void) {
    prepare();
    CUdeviceptr address;
    OK(cuMemAlloc(&address, MIB));
    HOLDS(simcuda_calls("cuMemAlloc_v2") == 1);
    OK(cuMemFree(address));
}

static void refused(void) {
    prepare();
    CUdeviceptr address;
    HOLDS(cuMemAlloc(&address, MIB) == CUDA_ERROR_SYSTEM_NOT_READY);
    HOLDS(cuMemAllocAsync(&address, MIB, NULL) == CUDA_ERROR_SYSTEM_NOT_READY);
}

static void not_understood(void) {
    HOLDS(cuInit(0) == CUDA_ERROR_INVALID_VALUE);
}

int main(int argc, char **argv) {
    static const struct scenario scenarios[] = {
        {"attributes", attributes},
        {"chosen", chosen},
        {"overflowing", overflowing},
        {"threads", threads},
        {"explicit_jobs", explicit_jobs},
        {"forking", forking},
        {"resetting", resetting},
        {"without_agent", without_agent},
        {"refused", refused},
        {"not_understood", not_understood},
        {"serve", serve},
    };
    struct task none = {0};
    HOLDS(argc == 3);
    seed = strtoul(argv[2], NULL, 10);
    return run_scenario(argv[1], scenarios, sizeof scenarios / sizeof *scenarios, &none);
}
