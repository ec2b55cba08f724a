/* What a task on a GPU does with graphs whose weights stream. One scenario, named by the first
 * argument, a process; the second is the agent's socket, the third the number of extents. */
#include <pthread.h>
#include <string.h>

#include "gpu_kit.h"
#include "kernel_node.h"
#include "simcuda.h"

enum { ZERO = 200 }; /* a slot that nothing writes to */

static struct task task;
static const char *socket_path;
static uint32_t extents;
static CUstream stream;

static void load_all(void) {
    use_gpu();
    load(&task, socket_path, 0, extents, 1);
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
}

/* Says a word and waits for the answer, so that the test can act. */
static void say(const char *word) {
    char line[64];
    puts(word);
    fflush(stdout);
    HOLDS(fgets(line, sizeof line, stdin) != NULL);
}

static CUgraphExec instantiate(CUgraph graph) {
    CUgraphExec exec;
    OK(cuGraphInstantiate(&exec, graph, 0));
    OK(cuGraphDestroy(graph));
    return exec;
}

static CUgraphExec capture(const uint32_t *order, uint32_t count, uint64_t duration_ns) {
    CUgraph graph;
    OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    for (uint32_t i = 0; i < count; i++) {
        OK(launch(&task, order[i], order[i], stream, duration_ns));
    }
    OK(cuStreamEndCapture(stream, &graph));
    return instantiate(graph);
}

static uint32_t forwards[MOST_WEIGHTS];

static CUgraphExec capture_all(uint64_t duration_ns) {
    for (uint32_t w = 0; w < task.count; w++) {
        forwards[w] = w;
    }
    return capture(forwards, task.count, duration_ns);
}

static bool streams(void) {
    return getenv("ALL_RESIDENT") == NULL;
}

/* Jobs of a graph that reads all weights in their order: nothing of it is fetched. */
static void run_streamed(CUgraphExec exec) {
    for (int i = 0; i < 3; i++) {
        clear(&task);
        uint64_t job = begin(&task);
        OK(cuGraphLaunch(exec, stream));
        check(&task, 0, task.count, stream);
        HOLDS(end(&task, job).fetched_bytes == 0);
    }
    OK(cuGraphExecDestroy(exec));
}

/* Launched again and again in a job: each pass reads the arena from the start. */
static void captured(void) {
    load_all();
    CUgraphExec exec = capture_all(0);
    for (int i = 0; i < 3; i++) {
        uint64_t job = begin(&task);
        for (int pass = 0; pass < 3; pass++) {
            clear(&task);
            OK(cuGraphLaunch(exec, stream));
            check(&task, 0, task.count, stream);
        }
        tierline_job_stats stats = end(&task, job);
        HOLDS(stats.fetched_bytes == 0);
        HOLDS(stats.streamed_extents > 0 || !streams());
    }
    OK(cuGraphExecDestroy(exec));
}

static void without_a_job(void) {
    load_all();
    CUgraphExec exec = capture_all(0);
    for (int i = 0; i < 3; i++) {
        clear(&task);
        OK(cuGraphLaunch(exec, stream));
        check(&task, 0, task.count, stream);
    }
    HOLDS(jobs(&task) > 0);
    OK(cuGraphExecDestroy(exec));
}

/* Pieces as graphs, with launches of their own between them, on this stream and on another. */
static void pieces(void) {
    load_all();
    capture_all(0);
    CUstream other;
    OK(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
    uint32_t third = task.count / 3;
    CUgraphExec first = capture(forwards, third, 500000);
    CUgraphExec last = capture(forwards + third + 3, task.count - third - 3, 0);
    for (int i = 0; i < 3; i++) {
        uint64_t job = begin(&task);
        for (int pass = 0; pass < 2; pass++) {
            clear(&task);
            OK(cuGraphLaunch(first, stream));
            for (uint32_t w = third; w < third + 3; w++) {
                OK(launch(&task, w, w, i == 1 ? other : stream, 500000));
            }
            OK(cuGraphLaunch(last, i == 2 ? other : stream));
            OK(cuCtxSynchronize());
            check(&task, 0, task.count, stream);
        }
        HOLDS(end(&task, job).fetched_bytes == 0);
    }
    OK(cuGraphExecDestroy(first));
    OK(cuGraphExecDestroy(last));
}

/* In any order the bytes are right; what the ring cannot hold is fetched. */
static void shuffled(void) {
    load_all();
    uint64_t state = 11;
    uint32_t order[MOST_WEIGHTS];
    for (int i = 0; i < 6; i++) {
        for (uint32_t w = 0; w < task.count; w++) {
            order[w] = w;
        }
        for (uint32_t w = task.count; w > 1; w--) {
            state = state * 6364136223846793005U + 1442695040888963407U;
            /* Nearly in order, or not at all. */
            uint32_t near = i % 2 == 0 && w > 2 ? 2 : w;
            uint32_t with = w - 1 - (uint32_t)(state >> 33) % near;
            uint32_t kept = order[w - 1];
            order[w - 1] = order[with];
            order[with] = kept;
        }
        CUgraphExec exec = capture(order, task.count, 0);
        uint64_t job = begin(&task);
        for (int pass = 0; pass < 2; pass++) {
            clear(&task);
            OK(cuGraphLaunch(exec, stream));
            check(&task, 0, task.count, stream);
        }
        end(&task, job);
        clear(&task);
        OK(cuGraphLaunch(exec, stream)); /* in a job of its own */
        check(&task, 0, task.count, stream);
        OK(cuGraphExecDestroy(exec));
    }
}

/* Branches that were added backwards and read in turns, with a child graph after them. */
static void built(void) {
    load_all();
    CUgraph graph;
    CUgraph inner;
    CUgraphNode nodes[MOST_WEIGHTS];
    CUgraphNode child;
    OK(cuGraphCreate(&graph, 0));
    OK(cuGraphCreate(&inner, 0));
    uint32_t last = task.count - 1;
    for (uint32_t w = task.count; w-- > 0;) {
        uint64_t in = (uint64_t)(uintptr_t)(task.results + ZERO);
        uint64_t out = (uint64_t)(uintptr_t)(task.results + w);
        uint64_t duration_ns = w % 5 == 0 ? 1000000 : 0;
        void *parameters[] = {&task.weights[w].address, &task.weights[w].bytes, &in, &out,
                              &duration_ns};
        CUDA_KERNEL_NODE_PARAMS node = kernel_node(task.hash, 1, parameters);
        OK(cuGraphAddKernelNode(&nodes[w], w == last ? inner : graph, NULL, 0, &node));
        if (w + 2 < last) {
            OK(cuGraphAddDependencies(graph, &nodes[w], &nodes[w + 2], NULL, 1));
        }
    }
    OK(cuGraphAddChildGraphNode(&child, graph, &nodes[last - 1], 1, inner));
    OK(cuGraphAddDependencies(graph, &nodes[last - 2], &child, NULL, 1));
    OK(cuGraphDestroy(inner));
    CUgraphExec exec = instantiate(graph);
    run_streamed(exec);
}

/* One stream's capture forks into another and joins it again. */
static void forked(void) {
    load_all();
    CUstream side;
    CUevent fork;
    CUevent join;
    CUgraph graph;
    OK(cuStreamCreate(&side, CU_STREAM_NON_BLOCKING));
    OK(cuEventCreate(&fork, CU_EVENT_DISABLE_TIMING));
    OK(cuEventCreate(&join, CU_EVENT_DISABLE_TIMING));
    OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    OK(launch(&task, 0, 0, stream, 0));
    OK(cuEventRecord(fork, stream));
    OK(cuStreamWaitEvent(side, fork, 0));
    for (uint32_t w = 1; w < task.count; w++) {
        OK(launch(&task, w, w, w % 3 == 0 ? side : stream, w % 4 == 0 ? 1000000 : 0));
    }
    OK(cuEventRecord(join, side));
    OK(cuStreamWaitEvent(stream, join, 0));
    OK(cuStreamEndCapture(stream, &graph));
    CUgraphExec exec = instantiate(graph);
    run_streamed(exec);
}

static void *end_of_others_capture(void *unused) {
    (void)unused;
    CUgraph graph;
    HOLDS(cuStreamEndCapture(stream, &graph) == CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
    return NULL;
}

/* A capture goes on after calls that neither begin nor end one, and is over after the one that
 * does: its launches wait for nothing, and the job after it can end. */
static void failing_captures(void) {
    load_all();
    CUstream side;
    CUgraph graph;
    pthread_t other;
    OK(cuStreamCreate(&side, CU_STREAM_NON_BLOCKING));
    HOLDS(cuStreamEndCapture(side, &graph) == CUDA_ERROR_ILLEGAL_STATE);
    OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    HOLDS(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL) ==
          CUDA_ERROR_ILLEGAL_STATE);
    HOLDS(cuStreamEndCapture(side, &graph) == CUDA_ERROR_ILLEGAL_STATE);
    OK(pthread_create(&other, NULL, end_of_others_capture, NULL));
    OK(pthread_join(other, NULL));
    size_t nodes = 0;
    for (uint32_t w = 0; w < task.count; w++) {
        OK(launch(&task, w, w, stream, 0));
    }
    OK(cuStreamEndCapture(stream, &graph));
    OK(cuGraphGetNodes(graph, NULL, &nodes));
    HOLDS(nodes == task.count); /* no wait of a stream is among them */
    run_streamed(instantiate(graph));
}

/* Before its weights were sealed: it has no gates. */
static void sealed_later(void) {
    extents /= 2;
    load_all();
    CUgraphExec exec = capture_all(0);
    struct task other;
    load_another(&other, &task, 1, extents, 2); /* all weights are watched again */
    for (int i = 0; i < 2; i++) {
        clear(&task);
        uint64_t job = begin(&task);
        OK(cuGraphLaunch(exec, stream));
        check(&task, 0, task.count, stream);
        HOLDS(end(&task, job).fetched_bytes == 0);
    }
    /* A job that streams the other arena. */
    clear(&task);
    uint64_t job = begin(&other);
    OK(cuGraphLaunch(exec, stream));
    OK(launch(&other, 1, 1, stream, 0));
    check(&task, 0, task.count, stream);
    check(&other, 1, 2, stream);
    end(&other, job);
    /* The other arena goes, and is watched no more. */
    OK(tierline_free(task.client, 1));
    clear(&task);
    job = begin(&task);
    OK(cuGraphLaunch(exec, stream));
    check(&task, 0, task.count, stream);
    HOLDS(end(&task, job).fetched_bytes == 0);
    OK(cuGraphExecDestroy(exec));
}

/* Jobs long enough to be preempted inside a graph, also when it runs twice in one. */
static void preempted(void) {
    load_all();
    CUgraphExec exec = capture_all(300000);
    for (int i = 0; i < 20; i++) {
        uint64_t job = begin(&task);
        for (int pass = 0; pass < 1 + i % 2; pass++) {
            clear(&task);
            OK(cuGraphLaunch(exec, stream));
            check(&task, 0, task.count, stream);
        }
        HOLDS(end(&task, job).fetched_bytes == 0);
    }
    OK(cuGraphExecDestroy(exec));
}

static void agent_killed(void) {
    load_all();
    CUgraphExec exec = capture_all(20000000);
    for (int i = 0; i < 2; i++) {
        clear(&task);
        uint64_t job = begin(&task);
        OK(cuGraphLaunch(exec, stream));
        say("streaming");
        check(&task, 0, task.count, stream);
        end(&task, job);
        say("between");
    }
    OK(cuGraphExecDestroy(exec));
}

/* The agent's copies fail while a graph waits for them. */
static void revoked(void) {
    load_all();
    CUgraphExec exec = capture_all(0);
    say("loaded");
    uint64_t job = begin(&task);
    OK(cuGraphLaunch(exec, stream));
    check(&task, 0, task.count, stream);
    HOLDS(tierline_job_end(task.client, job, 0) == TIERLINE_E_REVOKED);
    run_streamed(exec);
}

/* Has the driver refuse calls of this process from now on. */
static void fail(const char *rule) {
    FILE *rules = fopen(getenv("SIMCUDA_FAULT_FILE"), "w");
    HOLDS(rules != NULL && fputs(rule, rules) >= 0 && fclose(rules) == 0);
}

/* A graph that did not run has waited for nothing and given nothing back. */
static void refused_launch(void) {
    load_all();
    uint32_t from = task.count / 2;
    for (uint32_t w = 0; w < task.count; w++) {
        forwards[w] = w;
    }
    for (uint32_t count = 1; count <= task.count - from; count += task.count - from - 1) {
        CUgraphExec exec = capture(forwards + from, count, 0);
        clear(&task);
        uint64_t job = begin(&task);
        fail("call cuGraphLaunch 1 OUT_OF_MEMORY\n");
        HOLDS(cuGraphLaunch(exec, stream) == CUDA_ERROR_OUT_OF_MEMORY);
        fail("");
        for (uint32_t w = from; w < task.count; w++) {
            OK(launch(&task, w, w, stream, 0));
        }
        check(&task, from, task.count, stream);
        end(&task, job);
        OK(cuGraphExecDestroy(exec));
    }
}

/* The jobs of a model of which a part is also called by itself: graphs of one arena and of both. */
static void two_roots(void) {
    struct task whole;
    extents /= 2;
    load_all();
    load_another(&whole, &task, 1, extents, 2);
    CUgraph graph;
    OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    for (uint32_t w = 0; w < task.count || w < whole.count; w++) {
        if (w < task.count) {
            OK(launch(&task, w, w, stream, 0));
        }
        if (w < whole.count) {
            OK(launch(&whole, w, w, stream, 0));
        }
    }
    OK(cuStreamEndCapture(stream, &graph));
    CUgraphExec both = instantiate(graph);
    CUgraphExec part = capture_all(0);
    for (int i = 0; i < 4; i++) {
        clear(&task);
        clear(&whole);
        uint64_t job = begin(i % 2 == 0 ? &whole : &task);
        OK(cuGraphLaunch(i < 2 ? both : part, stream));
        for (uint32_t w = 0; w < whole.count && i >= 2; w++) {
            OK(launch(&whole, w, w, stream, 0));
        }
        check(&task, 0, task.count, stream);
        check(&whole, 0, whole.count, stream);
        HOLDS(end(&whole, job).fetched_bytes == 0 || i < 2);
    }
    OK(cuGraphExecDestroy(both));
    OK(cuGraphExecDestroy(part));
}

/* Tables that a kernel makes of weights, read by the one after it, which names none. */
static void tables_of_the_device(void) {
    load_all();
    CUmodule module;
    CUfunction array;
    CUfunction fill;
    CUdeviceptr table;
    uint64_t one = 1;
    uint64_t bytes = 4096;
    OK(cuModuleLoadData(&module, SIMCUDA_IMAGE));
    OK(cuModuleGetFunction(&array, module, "sim_gemm_array"));
    OK(cuModuleGetFunction(&fill, module, "sim_fill"));
    OK(cuMemAlloc(&table, sizeof(uint64_t)));
    CUgraph graph;
    OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    for (uint32_t w = 0; w < task.count; w++) {
        uint64_t in = (uint64_t)(uintptr_t)(task.results + ZERO);
        uint64_t out = (uint64_t)(uintptr_t)(task.results + w);
        uint64_t duration_ns = 300000;
        void *made[] = {&table, &task.weights[w].address, &one};
        void *waits[] = {&duration_ns};
        void *read[] = {&table, &one, &bytes, &in, &out};
        OK(cuLaunchKernel(fill, 1, 1, 1, 1, 1, 1, 0, stream, made, NULL));
        OK(cuLaunchKernel(task.spin, 1, 1, 1, 1, 1, 1, 0, stream, waits, NULL));
        OK(cuLaunchKernel(array, 1, 1, 1, 1, 1, 1, 0, stream, read, NULL));
    }
    OK(cuStreamEndCapture(stream, &graph));
    CUgraphExec exec = instantiate(graph);
    for (int i = 0; i < 3; i++) {
        clear(&task);
        uint64_t job = begin(&task);
        OK(cuGraphLaunch(exec, stream));
        OK(cuCtxSynchronize());
        for (uint32_t w = 0; w < task.count; w++) {
            const uint8_t *at = task.content + task.weights[w].offset;
            HOLDS(task.weights[w].bytes < bytes || task.results[w] == simcuda_hash(0, at, bytes));
        }
        end(&task, job);
    }
    OK(cuGraphExecDestroy(exec));
}

/* What cannot be read may read anything: such a graph does not run. */
static void unreadable(void) {
    load_all();
    CUgraph graph;
    OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    OK(launch(&task, 1, 1, stream, 0));
    OK(cuStreamEndCapture(stream, &graph));
    fail("call cuGraphKernelNodeGetParams 1+ INVALID_VALUE\n");
    CUgraphExec exec;
    OK(cuGraphInstantiate(&exec, graph, 0));
    fail("");
    uint64_t job = begin(&task);
    HOLDS(cuGraphLaunch(exec, stream) == CUDA_ERROR_NOT_SUPPORTED);
    end(&task, job);
    OK(cuGraphExecDestroy(exec));
    OK(cuGraphDestroy(graph));
}

int main(int argc, char **argv) {
    static const struct scenario scenarios[] = {
        {"captured", captured},
        {"without_a_job", without_a_job},
        {"pieces", pieces},
        {"shuffled", shuffled},
        {"built", built},
        {"forked", forked},
        {"failing_captures", failing_captures},
        {"sealed_later", sealed_later},
        {"preempted", preempted},
        {"agent_killed", agent_killed},
        {"revoked", revoked},
        {"refused_launch", refused_launch},
        {"unreadable", unreadable},
        {"two_roots", two_roots},
        {"tables_of_the_device", tables_of_the_device},
    };
    HOLDS(argc == 4);
    socket_path = argv[2];
    extents = (uint32_t)strtoul(argv[3], NULL, 10);
    return run_scenario(argv[1], scenarios, sizeof scenarios / sizeof *scenarios, &task);
}
