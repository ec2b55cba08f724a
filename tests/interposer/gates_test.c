/* Graphs whose weights stream through a ring that is too small for them: right bytes in any order.
 */
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "ring_kit.h"
#include "simcuda.h"

static CUgraphExec instantiate(CUgraph graph) {
    CUgraphExec exec;
    OK(cuGraphInstantiate(&exec, graph, 0));
    return exec;
}

typedef CUresult old_instantiate(CUgraphExec *, CUgraph, CUgraphNode *, char *, size_t);

static CUgraphExec instantiate_by(int way, CUgraph graph) {
    CUgraphExec exec;
    CUDA_GRAPH_INSTANTIATE_PARAMS parameters = {0};
    CUgraphNode wrong;
    char log[16];
    static const char *const names[] = {"cuGraphInstantiate", "cuGraphInstantiate_v2"};
    if (way == 0) {
        return instantiate(graph);
    }
    if (way == 1) {
        OK(cuGraphInstantiateWithParams(&exec, graph, &parameters));
        return exec;
    }
    old_instantiate *old = (old_instantiate *)dlsym(RTLD_DEFAULT, names[way - 2]);
    CHECK(old != NULL);
    OK(old(&exec, graph, &wrong, log, sizeof log));
    return exec;
}

static void captured_chain(void) {
    CUstream stream;
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CUgraph graph = capture(in_order, WEIGHTS, stream);
    for (int way = 0; way < 4; way++) {
        uint64_t before = gates_added();
        CUgraphExec exec = instantiate_by(way, graph);
        CHECK(gates_added() > before);
        EQUAL(nodes_in(graph), WEIGHTS);
        job.passes = 0;
        for (uint32_t launches = 1; launches <= 3; launches++) {
            run_graph(exec, stream);
            CHECK(step(WEIGHTS) == expected(in_order, WEIGHTS));
            EQUAL(job.passes, launches); /* each pass reads the weights again */
        }
        EQUAL(job.fetched, 0);
        EQUAL(__atomic_load_n(&words[16], __ATOMIC_SEQ_CST), STREAMED); /* all given back */
        OK(cuGraphExecDestroy(exec));
        end_job();
    }
    OK(cuGraphDestroy(graph));
    OK(cuStreamDestroy(stream));
}

/* Kernels that may begin before the one in front of them is through. */
static void programmatic_edges(void) {
    CUstream stream;
    CUgraph graph;
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    for (uint32_t w = 0; w < WEIGHTS; w++) {
        CUlaunchAttribute attribute = {.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
                                       .value.programmaticStreamSerializationAllowed = 1};
        CUlaunchConfig config = {1, 1, 1, 32, 1, 1, 0, stream, &attribute, w % 3 != 0};
        struct parameters p;
        OK(cuLaunchKernelEx(&config, gemm, parameters_of(&p, w, w, w + 1), NULL));
    }
    OK(cuStreamEndCapture(stream, &graph));
    CUgraphNode from[WEIGHTS];
    CUgraphNode to[WEIGHTS];
    size_t edges = WEIGHTS;
    FAILS(cuGraphGetEdges(graph, from, to, NULL, &edges), CUDA_ERROR_LOSSY_QUERY);
    CUgraphExec exec = instantiate(graph);
    for (int i = 0; i < 2; i++) {
        run_graph(exec, stream);
        CHECK(step(WEIGHTS) == expected(in_order, WEIGHTS));
    }
    EQUAL(job.fetched, 0);
    CHECK(gates_added() > 0);
    OK(cuGraphExecDestroy(exec));
    OK(cuGraphDestroy(graph));
    OK(cuStreamDestroy(stream));
}

static void nothing_streamed(void) {
    CUstream stream;
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CUgraph graph = capture((const uint32_t[]){0}, 1, stream); /* resident */
    uint64_t clones = simcuda_calls("cuGraphClone");
    CUgraphExec exec = instantiate(graph);
    EQUAL(simcuda_calls("cuGraphClone"), clones);
    run_graph(exec, stream);
    CHECK(step(1) == expected((const uint32_t[]){0}, 1));
    EQUAL(job.passes, 0);
    EQUAL(job.graph_launches, 1);
    OK(cuGraphExecDestroy(exec));
    OK(cuGraphDestroy(graph));
    OK(cuStreamDestroy(stream));
}

/* The same weights in every order that a shuffle gives, through rings of every length. */
static void any_order(void) {
    CUstream stream;
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    uint64_t state = 7;
    uint32_t with_loose = 0;
    for (int round = 0; round < 12; round++) {
        uint32_t order[WEIGHTS];
        memcpy(order, in_order, sizeof order);
        for (uint32_t i = WEIGHTS; i > 1 && round > 0; i--) {
            state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
            /* A few that are out of place, or all. */
            uint32_t other = round % 3 == 0 ? i - 1 : (uint32_t)(state >> 33) % i;
            other = round % 3 == 1 && i % 5 != 0 ? i - 1 : other;
            uint32_t kept = order[i - 1];
            order[i - 1] = order[other];
            order[other] = kept;
        }
        job.most_loose = 0;
        CUgraph graph = capture(order, WEIGHTS, stream);
        CUgraphExec exec = instantiate(graph);
        run_graph(exec, stream);
        CHECK(step(WEIGHTS) == expected(order, WEIGHTS));
        run_graph(exec, stream);
        CHECK(step(WEIGHTS) == expected(order, WEIGHTS));
        with_loose += job.most_loose > 0;
        OK(cuGraphExecDestroy(exec));
        OK(cuGraphDestroy(graph));
        end_job();
    }
    CHECK(with_loose > 0 && with_loose < 12);
    OK(cuStreamDestroy(stream));
}

/* Two branches, built backwards, that read in turns; then one node after both. */
static void built_branches(void) {
    CUstream stream;
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CUgraph graph;
    CUgraphNode nodes[WEIGHTS];
    OK(cuGraphCreate(&graph, 0));
    for (uint32_t w = WEIGHTS; w-- > 0;) {
        struct parameters p;
        uint32_t in = w >= 2 ? w - 1 : 0; /* outcome of w is at w + 1 */
        CUDA_KERNEL_NODE_PARAMS node = node_of(&p, w, in, w + 1);
        OK(cuGraphAddKernelNode(&nodes[w], graph, NULL, 0, &node));
        if (w + 2 < WEIGHTS) {
            OK(cuGraphAddDependencies(graph, &nodes[w], &nodes[w + 2], NULL, 1));
        }
    }
    OK(cuGraphAddDependencies(graph, &nodes[WEIGHTS - 2], &nodes[WEIGHTS - 1], NULL, 1));
    CUgraphExec exec = instantiate(graph);
    EQUAL(nodes_in(graph), WEIGHTS);
    uint32_t even[WEIGHTS / 2];
    uint32_t odd[WEIGHTS / 2];
    for (uint32_t i = 0; i < WEIGHTS / 2; i++) {
        even[i] = 2 * i;
        odd[i] = 2 * i + 1;
    }
    for (int i = 0; i < 2; i++) {
        run_graph(exec, stream);
        CHECK(step(WEIGHTS - 1) == expected(even, WEIGHTS / 2));
        CHECK(step(WEIGHTS) == expected(odd, WEIGHTS / 2));
    }
    EQUAL(job.fetched, 0);
    OK(cuGraphExecDestroy(exec));
    OK(cuGraphDestroy(graph));
    OK(cuStreamDestroy(stream));
}

/* Pieces of a model as graphs, with launches of its own between them. */
static void pieces(void) {
    CUstream stream;
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CUgraph first = capture(in_order, 5, stream);
    CUgraph second = capture(in_order + 7, 5, stream);
    CUgraphExec execs[] = {instantiate(first), instantiate(second)};
    for (uint32_t pass = 1; pass <= 2; pass++) {
        OK(cuMemsetD8Async(steps, 0, 4096, stream));
        OK(cuGraphLaunch(execs[0], stream));
        CHECK(cuStreamSynchronize(stream) == CUDA_SUCCESS);
        uint64_t after_first = step(5);
        CHECK(after_first == expected(in_order, 5));
        launch(5, 5, 6, stream);
        launch(6, 6, 0, stream); /* where the second piece begins */
        OK(cuGraphLaunch(execs[1], stream));
        launch(12, 5, 6, stream);
        launch(13, 6, 7, stream);
        OK(cuStreamSynchronize(stream));
        CHECK(step(7) == expected(in_order, WEIGHTS));
        EQUAL(job.passes, pass);
        EQUAL(job.fetched, 0);
    }
    OK(cuGraphExecDestroy(execs[0]));
    OK(cuGraphExecDestroy(execs[1]));
    OK(cuGraphDestroy(first));
    OK(cuGraphDestroy(second));
    OK(cuStreamDestroy(stream));
}

static void child_graphs_and_copies(void) {
    CUstream stream;
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CUgraph inner = capture(in_order + 4, 3, stream);
    CUdeviceptr copied;
    OK(cuMemAlloc(&copied, EXTENT));
    OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    launch(0, 10, 11, stream);
    launch(2, 11, 12, stream);
    OK(cuMemcpyDtoDAsync(copied, weights[3].address, EXTENT / 2, stream));
    CUgraph graph;
    OK(cuStreamEndCapture(stream, &graph));
    CUgraphNode list[3];
    CUgraphNode child;
    CUgraphNode last;
    size_t count = 3;
    OK(cuGraphGetNodes(graph, list, &count));
    EQUAL(count, 3);
    OK(cuGraphAddChildGraphNode(&child, graph, &list[2], 1, inner));
    struct parameters p;
    CUDA_KERNEL_NODE_PARAMS node = node_of(&p, 9, 12, 13);
    OK(cuGraphAddKernelNode(&last, graph, &child, 1, &node));
    CUgraphExec exec = instantiate(graph);
    for (int i = 0; i < 2; i++) {
        run_graph(exec, stream);
        CHECK(step(13) == expected((const uint32_t[]){0, 2, 9}, 3));
        CHECK(step(3) == expected(in_order + 4, 3));
        unsigned char *seen = malloc(EXTENT / 2);
        CHECK(seen != NULL);
        OK(cuMemcpyDtoH(seen, copied, EXTENT / 2));
        CHECK(memcmp(seen, content + (weights[3].address - base), EXTENT / 2) == 0);
        free(seen);
    }
    /* A node inside the child, and the copy, are known by the program's handles. */
    CUgraph embedded;
    CUgraphNode inside[3];
    OK(cuGraphChildGraphNodeGetGraph(child, &embedded));
    OK(cuGraphGetNodes(embedded, inside, &count));
    node = node_of(&p, 13, 0, 1);
    OK(cuGraphExecKernelNodeSetParams(exec, inside[0], &node));
    CUDA_MEMCPY3D box;
    CUcontext context;
    OK(cuCtxGetCurrent(&context));
    OK(cuGraphMemcpyNodeGetParams(list[2], &box));
    box.srcDevice = weights[12].address;
    OK(cuGraphExecMemcpyNodeSetParams(exec, list[2], &box, context));
    run_graph(exec, stream);
    CHECK(step(3) == expected((const uint32_t[]){13, 5, 6}, 3));
    unsigned char seen[64];
    OK(cuMemcpyDtoH(seen, copied, sizeof seen));
    CHECK(memcmp(seen, content + (weights[12].address - base), sizeof seen) == 0);
    OK(cuGraphExecDestroy(exec));
    OK(cuGraphDestroy(graph));
    OK(cuGraphDestroy(inner));
    end_job(); /* memory is freed when all streams are idle, the agent's too */
    OK(cuMemFree(copied));
    OK(cuStreamDestroy(stream));
}

static void changed_nodes(void) {
    CUstream stream;
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CUgraph graph = capture(in_order, WEIGHTS, stream);
    CUgraphNode nodes[WEIGHTS];
    size_t count = WEIGHTS;
    OK(cuGraphGetNodes(graph, nodes, &count));
    CUgraphExec exec = instantiate(graph);
    run_graph(exec, stream);
    /* Another weight, far away: it is fetched. */
    struct parameters p;
    CUDA_KERNEL_NODE_PARAMS node = node_of(&p, 13, 1, 2);
    OK(cuGraphExecKernelNodeSetParams(exec, nodes[1], &node));
    uint32_t order[WEIGHTS];
    memcpy(order, in_order, sizeof order);
    order[1] = 13;
    run_graph(exec, stream);
    CHECK(step(WEIGHTS) == expected(order, WEIGHTS));
    CHECK(job.fetched > 0 && job.most_loose > 0);
    end_job();
    /* And back again. */
    node = node_of(&p, 1, 1, 2);
    OK(cuGraphExecKernelNodeSetParams(exec, nodes[1], &node));
    job.most_loose = 0;
    run_graph(exec, stream);
    CHECK(step(WEIGHTS) == expected(in_order, WEIGHTS));
    EQUAL(job.most_loose, 0);
    /* Nodes can be switched off by the program's handles. */
    unsigned int enabled = 7;
    OK(cuGraphNodeSetEnabled(exec, nodes[WEIGHTS - 1], 0));
    OK(cuGraphNodeGetEnabled(exec, nodes[WEIGHTS - 1], &enabled));
    EQUAL(enabled, 0);
    run_graph(exec, stream);
    CHECK(step(WEIGHTS) == 0 && step(WEIGHTS - 1) == expected(in_order, WEIGHTS - 1));
    OK(cuGraphExecDestroy(exec));
    OK(cuGraphDestroy(graph));
    OK(cuStreamDestroy(stream));
}

static void updated(void) {
    CUstream stream;
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CUgraph graph = capture(in_order, WEIGHTS, stream);
    CUgraphExec exec = instantiate(graph);
    /* The same weights; then others, which need other gates. */
    uint32_t order[WEIGHTS];
    memcpy(order, in_order, sizeof order);
    for (int round = 0; round < 3; round++) {
        order[5] = round == 1 ? 12 : 5;
        CUgraph other = capture(order, WEIGHTS, stream);
        CUgraphExecUpdateResultInfo info;
        OK(cuGraphExecUpdate(exec, other, &info));
        EQUAL(info.result, CU_GRAPH_EXEC_UPDATE_SUCCESS);
        EQUAL(nodes_in(other), WEIGHTS);
        OK(cuGraphDestroy(other));
        job.most_loose = 0;
        run_graph(exec, stream);
        CHECK(step(WEIGHTS) == expected(order, WEIGHTS));
        EQUAL(job.most_loose > 0, round == 1);
        end_job();
    }
    /* What went wrong is said of the program's nodes. */
    CUgraph copying;
    OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    for (uint32_t i = 0; i < WEIGHTS - 1; i++) {
        launch(order[i], i, i + 1, stream);
    }
    OK(cuMemsetD8Async(steps, 0, 8, stream));
    OK(cuStreamEndCapture(stream, &copying));
    CUgraphNode nodes[WEIGHTS];
    size_t count = WEIGHTS;
    OK(cuGraphGetNodes(copying, nodes, &count));
    CUgraphExecUpdateResultInfo info;
    FAILS(cuGraphExecUpdate(exec, copying, &info), CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
    CHECK(info.errorNode == nodes[WEIGHTS - 1]);
    run_graph(exec, stream);
    CHECK(step(WEIGHTS) == expected(order, WEIGHTS));
    OK(cuGraphDestroy(copying));
    OK(cuGraphExecDestroy(exec));
    OK(cuGraphDestroy(graph));
    OK(cuStreamDestroy(stream));
}

/* Weights are watched again, the words move, and in the end the arena goes. */
static void another_generation(void) {
    CUstream stream;
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CUgraph graph = capture(in_order, WEIGHTS, stream);
    CUgraphExec exec = instantiate(graph);
    run_graph(exec, stream);
    CHECK(step(WEIGHTS) == expected(in_order, WEIGHTS));
    end_job();
    OK(cuMemFreeHost(words));
    OK(cuMemHostAlloc((void **)&words, 8192, CU_MEMHOSTALLOC_PORTABLE));
    words += 1024;
    memset(words, 0, 4096);
    EQUAL(tierline_observer_watch(weights, WEIGHTS), 0);
    uint64_t added = gates_added();
    run_graph(exec, stream);
    CHECK(step(WEIGHTS) == expected(in_order, WEIGHTS));
    EQUAL(gates_added(), added);
    EQUAL(job.most_loose, 0);
    end_job();
    /* Everything is resident and nobody watches: what the gates stood for is gone. */
    for (uint32_t w = 0; w < WEIGHTS; w++) {
        fetch(w);
    }
    ring_gated(false);
    EQUAL(tierline_observer_watch(NULL, 0), 0);
    OK(cuMemFreeHost(words - 1024));
    words = NULL;
    run_graph(exec, stream);
    CHECK(step(WEIGHTS) == expected(in_order, WEIGHTS));
    OK(cuGraphExecDestroy(exec));
    OK(cuGraphDestroy(graph));
    OK(cuStreamDestroy(stream));
    drop_private();
}

/* Instantiated before anything streamed: it has no gates, so all is fetched. */
static void instantiated_early(void) {
    CUstream stream;
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    ring_gated(false);
    CUgraph graph = capture(in_order, WEIGHTS, stream);
    CUgraphExec exec = instantiate(graph);
    ring_gated(true);
    run_graph(exec, stream);
    CHECK(step(WEIGHTS) == expected(in_order, WEIGHTS));
    EQUAL(job.fetched, STREAMED);
    OK(cuGraphExecDestroy(exec));
    OK(cuGraphDestroy(graph));
    OK(cuStreamDestroy(stream));
}

/* The driver does not clone it, or does not instantiate it with gates: it runs as it is. */
static void without_gates(void) {
    CUstream stream;
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CUgraph graph = capture(in_order, WEIGHTS, stream);
    CUgraphExec exec = instantiate(graph);
    for (int i = 0; i < 2; i++) {
        run_graph(exec, stream);
        CHECK(step(WEIGHTS) == expected(in_order, WEIGHTS));
    }
    EQUAL(job.fetched, STREAMED);
    EQUAL(job.passes, 0);
    OK(cuGraphExecDestroy(exec));
    OK(cuGraphDestroy(graph));
    OK(cuStreamDestroy(stream));
}

static void not_cloned(void) {
    without_gates();
}

static void not_instantiated_with_gates(void) {
    without_gates();
    CHECK(gates_added() > 0);
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*run)(void);
    } scenarios[] = {
        {"captured_chain", captured_chain},
        {"programmatic_edges", programmatic_edges},
        {"nothing_streamed", nothing_streamed},
        {"any_order", any_order},
        {"built_branches", built_branches},
        {"pieces", pieces},
        {"child_graphs_and_copies", child_graphs_and_copies},
        {"changed_nodes", changed_nodes},
        {"updated", updated},
        {"another_generation", another_generation},
        {"instantiated_early", instantiated_early},
        {"not_cloned", not_cloned},
        {"not_instantiated_with_gates", not_instantiated_with_gates},
    };
    CHECK(argc == 3);
    for (size_t i = 0; i < sizeof scenarios / sizeof *scenarios; i++) {
        if (strcmp(argv[1], scenarios[i].name) == 0) {
            if (scenarios[i].run == not_cloned) {
                setenv("SIMCUDA_FAULTS", "call cuGraphClone 1+ NOT_SUPPORTED", 1);
            } else if (scenarios[i].run == not_instantiated_with_gates) {
                setenv("SIMCUDA_FAULTS", "call cuGraphInstantiateWithFlags 1 NOT_SUPPORTED", 1);
            }
            ring_open((uint32_t)atoi(argv[2]));
            scenarios[i].run();
            ring_close();
            return 0;
        }
    }
    return 2;
}
