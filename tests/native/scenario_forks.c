/* What forked children read, whatever they and their parent do meanwhile. */
#include "scenario_kit.h"

#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define WRITTEN 99

/* Two ends that two processes wait for each other by. */
struct signals {
    int to_child[2], to_parent[2];
};

static struct signals signals_of_a_pair(void) {
    struct signals signals;
    EXPECT(pipe(signals.to_child) == 0 && pipe(signals.to_parent) == 0);
    return signals;
}

static void give(int end) {
    EXPECT(write(end, "", 1) == 1);
}

static void await(int end) {
    char byte;
    EXPECT(read(end, &byte, 1) == 1);
}

typedef void deed(const struct model *model);

static pid_t fork_for(deed *what, const struct model *model) {
    pid_t child = fork();
    EXPECT(child >= 0);
    if (child == 0) {
        what(model);
        _exit(0);
    }
    return child;
}

static int end_of(pid_t child) {
    int status;
    EXPECT(waitpid(child, &status, 0) == child);
    return status;
}

static void in_child(deed *what, const struct model *model) {
    EXPECT(end_of(fork_for(what, model)) == 0);
}

static void read_all(const struct model *model) {
    for (uint32_t e = 0; e < EXTENTS; e++) {
        expect_extent(model, e);
    }
}

static volatile uint8_t *byte_of(const struct model *model, uint32_t extent) {
    /* The API gives weights as read-only.
     * NOLINTNEXTLINE(performance-no-int-to-ptr) */
    return (volatile uint8_t *)((uintptr_t)model->base + extent * model->extent_bytes + 7);
}

/* Of a job whose first layer has run. */
static void end_begun_job(const struct model *model, uint64_t job) {
    for (uint32_t l = 1; l < EXTENTS; l++) {
        run_layer(model, l);
    }
    OK(tierline_job_end(model->client, job, 0));
    EXPECT(stats_of(model).fetched_bytes == 0);
}

static void call_in_child(const struct model *model) {
    uint64_t job;
    FAILS(TIERLINE_E_FORKED, tierline_job_begin(model->client, 0, 0, 1, 2, &job));
    FAILS(TIERLINE_E_FORKED, tierline_layer_begin(model->client, 0, 0));
    tierline_close(model->client);
}

static void read_in_a_grandchild(const struct model *model) {
    expect_extent(model, 3);
    in_child(read_all, model);
    read_all(model);
}

static void send_in_child(const struct model *model) {
    int ends[2];
    EXPECT(pipe(ends) == 0);
    for (uint32_t e = 0; e < EXTENTS; e++) { /* the kernel reads it before this process did */
        uint8_t got[64];
        EXPECT(write(ends[1], model->base + e * model->extent_bytes, sizeof got) == sizeof got);
        EXPECT(read(ends[0], got, sizeof got) == sizeof got);
        EXPECT(memcmp(got, model->base + e * model->extent_bytes, sizeof got) == 0);
        expect_extent(model, e);
    }
}

/* In the middle of a job: the parent's job does not notice. */
static void forking(const char *socket_path) {
    struct model model = loaded(connected(socket_path), 0);
    uint64_t job = begin_job(&model);
    run_layer(&model, 0);
    in_child(call_in_child, &model);
    in_child(read_all, &model);
    in_child(read_in_a_grandchild, &model);
    in_child(send_in_child, &model);
    end_begun_job(&model, job);
    in_child(read_all, &model);
    run_job(&model);
    tierline_close(model.client);
}

static void many_children(const char *socket_path) {
    struct model model = loaded(connected(socket_path), 0);
    pid_t children[70]; /* more than are told apart */
    for (size_t i = 0; i < 70; i++) {
        children[i] = fork_for(read_all, &model);
    }
    EXPECT(run_job(&model).fetched_bytes == 0);
    for (size_t i = 0; i < 70; i++) {
        EXPECT(end_of(children[i]) == 0);
    }
    tierline_close(model.client);
}

static void write_in_child(const struct model *model) {
    for (uint32_t e = 0; e < EXTENTS; e++) {
        EXPECT(*byte_of(model, e) == (e == 2 ? WRITTEN : *byte_of(model, e)));
        *byte_of(model, e) = (uint8_t)e;
        EXPECT(*byte_of(model, e) == e);
    }
    _exit(0);
}

/* What was written before a fork is the child's, too; what either writes later is its own. */
static void writing_and_forking(const char *socket_path) {
    struct model model = loaded(connected(socket_path), 0);
    struct signals signals = signals_of_a_pair();
    *byte_of(&model, 2) = WRITTEN;
    pid_t child = fork();
    if (child == 0) {
        await(signals.to_child[0]);
        EXPECT(*byte_of(&model, 2) == WRITTEN);
        expect_extent(&model, 4); /* as it was */
        expect_extent(&model, 5);
        write_in_child(&model);
    }
    *byte_of(&model, 4) = WRITTEN; /* a resident one */
    *byte_of(&model, 5) = WRITTEN; /* a streamed one */
    give(signals.to_child[1]);
    EXPECT(end_of(child) == 0);
    in_child(write_in_child, &model);
    for (uint32_t e = 0; e < EXTENTS; e++) {
        if (e == 2 || e == 4 || e == 5) {
            EXPECT(*byte_of(&model, e) == WRITTEN);
        } else {
            expect_extent(&model, e);
        }
    }
    tierline_close(model.client);
}

/* A child that has read a part lives on, while its parent gives the weights back in this way. */
static pid_t reads_afterwards(struct signals signals, const struct model *model) {
    pid_t child = fork();
    EXPECT(child >= 0);
    if (child == 0) {
        close(signals.to_child[1]); /* its parent's end is noticed */
        expect_extent(model, 6);
        give(signals.to_parent[1]);
        await(signals.to_child[0]);
        read_all(model);
        in_child(read_all, model);
        give(signals.to_parent[1]);
        _exit(0);
    }
    await(signals.to_parent[0]);
    return child;
}

static void go_on(struct signals signals) {
    give(signals.to_child[1]);
    await(signals.to_parent[0]);
}

static void freeing_and_forking(const char *socket_path) {
    struct model model = loaded(connected(socket_path), 0);
    struct signals signals = signals_of_a_pair();
    pid_t child = reads_afterwards(signals, &model);
    OK(tierline_free(model.client, 0));
    struct model other = loaded(model.client, 0);
    EXPECT(run_job(&other).fetched_bytes == 0);
    go_on(signals);
    EXPECT(end_of(child) == 0);
    in_child(read_all, &other);
    child = reads_afterwards(signals, &other);
    tierline_close(model.client);
    go_on(signals);
    EXPECT(end_of(child) == 0);
}

static void ending_and_forking(const char *socket_path) {
    struct signals signals = signals_of_a_pair();
    pid_t parent = fork();
    if (parent == 0) {
        struct model model = loaded(connected(socket_path), 0);
        EXPECT(reads_afterwards(signals, &model) > 0);
        exit(0);
    }
    EXPECT(end_of(parent) == 0);
    close(signals.to_parent[1]); /* a child that dies is noticed */
    go_on(signals);
}

/* Of a process that is killed nobody can have the rest: a child that reads it is told, and does not
 * wait. */
static void killed_and_forked(const char *socket_path) {
    struct signals signals = signals_of_a_pair();
    pid_t parent = fork();
    if (parent == 0) {
        struct model model = loaded(connected(socket_path), 0);
        int held[2]; /* by this process alone */
        EXPECT(pipe(held) == 0);
        pid_t child = fork();
        EXPECT(child >= 0);
        if (child == 0) {
            close(held[1]);
            char byte;
            EXPECT(read(held[0], &byte, 1) == 0); /* it is gone */
            signal(SIGABRT, SIG_DFL);
            expect_extent(&model, 1);
        }
        _exit(0);
    }
    EXPECT(end_of(parent) == 0);
    close(signals.to_parent[1]);
    char byte;
    EXPECT(read(signals.to_parent[0], &byte, 1) == 0);
}

static void connect_in_child(const struct model *model) {
    const char *socket_path = getenv("SCENARIO_SOCKET");
    struct model own = loaded(connected(socket_path), 0);
    EXPECT(run_job(&own).fetched_bytes == 0);
    EXPECT(own.client != model->client);
    read_all(model);
    in_child(read_all, model);
    in_child(read_all, &own);
    tierline_close(own.client);
}

static void connecting_in_a_child(const char *socket_path) {
    EXPECT(setenv("SCENARIO_SOCKET", socket_path, 1) == 0);
    struct model model = loaded(connected(socket_path), 0);
    uint64_t job = begin_job(&model);
    run_layer(&model, 0);
    in_child(connect_in_child, &model);
    end_begun_job(&model, job);
    tierline_close(model.client);
}

const struct named_scenario fork_scenarios[] = {
    {"forking", forking},
    {"many_children", many_children},
    {"writing_and_forking", writing_and_forking},
    {"freeing_and_forking", freeing_and_forking},
    {"ending_and_forking", ending_and_forking},
    {"killed_and_forked", killed_and_forked},
    {"connecting_in_a_child", connecting_in_a_child},
    {NULL, NULL},
};
