/* Arenas that come and go while another one is read, and a context that ends. One scenario, named
 * by the first argument, a process; the second is the agent's socket, the third the number of
 * extents.
 */
#include <pthread.h>
#include <stdatomic.h>

#include "gpu_kit.h"

enum { LOADS = 12, STREAMS = 2 };

static struct task task;
static const char *socket_path;
static uint32_t extents;
static CUcontext context;
static atomic_bool over;

/* Jobs long enough to be preempted. */
static void *run_jobs(void *unused) {
    (void)unused;
    CUstream stream;
    OK(cuCtxSetCurrent(context));
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    while (!atomic_load(&over)) {
        clear(&task);
        uint64_t job = begin(&task);
        for (uint32_t w = 0; w < task.count; w++) {
            OK(launch(&task, w, w, stream, 300000));
        }
        check(&task, 0, task.count, stream);
        end(&task, job);
    }
    return NULL;
}

static void between_jobs(void (*act)(void)) {
    extents /= 2;
    context = use_gpu();
    load(&task, socket_path, 0, extents, 1);
    pthread_t thread;
    HOLDS(pthread_create(&thread, NULL, run_jobs, NULL) == 0);
    uint64_t before = jobs(&task);
    for (int i = 0; i < LOADS; i++) {
        act();
    }
    while (jobs(&task) < before + 3) { /* none of them was held up for ever */
    }
    atomic_store(&over, true);
    pthread_join(thread, NULL);
}

static void load_and_free(void) {
    struct task other;
    load_another(&other, &task, 1, extents, 2);
    OK(tierline_free(task.client, 1));
    free(other.content);
}

static void freed_between_jobs(void) {
    between_jobs(load_and_free);
}

static void ask_for_too_much(void) {
    void *base;
    HOLDS(tierline_reserve(task.client, 1, 100 * task.extent_bytes, 0, 1, &base) != 0);
}

static void refused_between_jobs(void) {
    between_jobs(ask_for_too_much);
}

static void use_two_streams(void) {
    CUstream streams[STREAMS];
    for (int s = 0; s < STREAMS; s++) {
        OK(cuStreamCreate(&streams[s], CU_STREAM_NON_BLOCKING));
    }
    clear(&task);
    uint64_t job = begin(&task);
    for (uint32_t w = 0; w < task.count; w++) {
        OK(launch(&task, w, w, streams[w % STREAMS], 0));
    }
    OK(cuCtxSynchronize());
    check(&task, 0, task.count, NULL);
    end(&task, job);
}

/* A program that begins again in another context: nothing of the dead one is used. */
static void reset(void) {
    for (int i = 0; i < 3; i++) {
        context = use_gpu();
        load(&task, socket_path, 0, extents, 1);
        use_two_streams();
        tierline_close(task.client);
        free(task.content);
        task.client = NULL;
        OK(cuDevicePrimaryCtxReset(0));
    }
}

/* The job was under way when the program reset the GPU, and is over then. */
static void reset_inside(void) {
    context = use_gpu();
    load(&task, socket_path, 0, extents, 1);
    for (int i = 0; i < 2; i++) {
        uint64_t job = begin(&task);
        OK(launch(&task, 0, 0, NULL, 0));
        OK(cuDevicePrimaryCtxReset(0));
        end(&task, job);
        context = use_gpu();
        OK(tierline_free(task.client, 0));
        struct task again;
        load_another(&again, &task, 0, extents, 1);
        free(task.content);
        task = again;
    }
    use_two_streams();
}

/* The client goes on, with its arenas loaded again. */
static void reset_below(void) {
    context = use_gpu();
    load(&task, socket_path, 0, extents, 1);
    for (int i = 0; i < 2; i++) {
        struct task again;
        use_two_streams();
        OK(cuDevicePrimaryCtxReset(0));
        context = use_gpu();
        OK(tierline_free(task.client, 0));
        load_another(&again, &task, 0, extents, 1);
        free(task.content);
        task = again;
    }
    use_two_streams();
}

static CUstream capturing(void) {
    CUstream stream;
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    return stream;
}

/* A program that gives a capture up without ending it can still end its jobs. */
static void capture_dropped(void) {
    context = use_gpu();
    load(&task, socket_path, 0, extents, 1);
    uint64_t job = begin(&task);
    CUstream stream = capturing();
    HOLDS(tierline_job_end(task.client, job, 0) == TIERLINE_E_STATE);
    OK(cuStreamDestroy(stream));
    end(&task, job);
    capturing();
    tierline_close(task.client);
    free(task.content);
    OK(cuDevicePrimaryCtxReset(0));
    context = use_gpu();
    load(&task, socket_path, 0, extents, 1);
    use_two_streams();
}

int main(int argc, char **argv) {
    static const struct scenario scenarios[] = {
        {"freed_between_jobs", freed_between_jobs},
        {"refused_between_jobs", refused_between_jobs},
        {"reset", reset},
        {"reset_inside", reset_inside},
        {"reset_below", reset_below},
        {"capture_dropped", capture_dropped},
    };
    HOLDS(argc == 4);
    socket_path = argv[2];
    extents = (uint32_t)strtoul(argv[3], NULL, 10);
    return run_scenario(argv[1], scenarios, sizeof scenarios / sizeof scenarios[0], &task);
}
