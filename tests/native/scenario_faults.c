/* Writes, forks, foreign faults, and an agent that dies and comes back. */
#include "scenario_kit.h"

#include <setjmp.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static void expect_written(const struct model *model, uint32_t extent) {
    const uint8_t *at = model->base + extent * model->extent_bytes;
    EXPECT(at[7] == 99);
    uint8_t *want = malloc(model->extent_bytes);
    EXPECT(want != NULL);
    uint64_t length;
    fill_extent(model, extent, want, &length);
    want[7] = 99;
    EXPECT(memcmp(at, want, length) == 0);
    free(want);
}

static void write_byte(const struct model *model, uint32_t extent) {
    /* The API gives weights as read-only. NOLINTNEXTLINE(performance-no-int-to-ptr) */
    uintptr_t at = (uintptr_t)model->base + extent * model->extent_bytes;
    /* The API gives weights as read-only. NOLINTNEXTLINE(performance-no-int-to-ptr) */
    ((volatile uint8_t *)at)[7] = 99;
}

/* A written extent leaves management: streamed, resident and privately read
 * ones alike. */
static void writing(const char *socket_path) {
    struct model model = loaded(connected(socket_path), 0);
    expect_extent(&model, 2);
    write_byte(&model, 2); /* private before */
    write_byte(&model, 4); /* resident */
    write_byte(&model, 6); /* closed */
    for (int i = 0; i < 2; i++) {
        uint64_t job = begin_job(&model);
        for (uint32_t l = 0; l < EXTENTS; l++) {
            OK(tierline_layer_begin(model.client, 0, l));
            for (uint32_t e = l; e <= l + 1 && e < EXTENTS; e++) {
                if (e == 2 || e == 4 || e == 6) {
                    expect_written(&model, e);
                } else {
                    expect_extent(&model, e);
                }
            }
            OK(tierline_layer_end(model.client, 0, l));
        }
        OK(tierline_job_end(model.client, job, 0));
        EXPECT(stats_of(&model).fetched_bytes == 0);
    }
    uint64_t job = begin_job(&model);
    OK(tierline_layer_begin(model.client, 0, 0));
    write_byte(&model, 1); /* open */
    expect_written(&model, 1);
    OK(tierline_job_end(model.client, job, 0));
    expect_written(&model, 1);
    tierline_statistics statistics;
    OK(tierline_get_statistics(model.client, &statistics)); /* the notices have been read by now */
    tierline_close(model.client);
}

static int in_child(void (*what)(const struct model *), const struct model *model) {
    pid_t child = fork();
    EXPECT(child >= 0);
    if (child == 0) {
        what(model);
        _exit(0);
    }
    int status;
    EXPECT(waitpid(child, &status, 0) == child);
    return status;
}

static void call_in_child(const struct model *model) {
    uint64_t job;
    FAILS(TIERLINE_E_FORKED, tierline_job_begin(model->client, 0, 0, 1, 2, &job));
    FAILS(TIERLINE_E_FORKED, tierline_layer_begin(model->client, 0, 0));
    tierline_close(model->client);
}

static void read_in_child(const struct model *model) {
    signal(SIGABRT, SIG_DFL);
    expect_extent(model, 1);
}

static void read_resident_in_child(const struct model *model) {
    expect_extent(model, 0);
}

static void connect_in_child(const struct model *model) {
    const char *socket_path = getenv("SCENARIO_SOCKET");
    struct model own = loaded(connected(socket_path), 0);
    EXPECT(run_job(&own).fetched_bytes == 0);
    EXPECT(own.client != model->client);
    tierline_close(own.client);
}

/* Of a job whose first layer has run. */
static void end_begun_job(const struct model *model, uint64_t job) {
    for (uint32_t l = 1; l < EXTENTS; l++) {
        run_layer(model, l);
    }
    OK(tierline_job_end(model->client, job, 0));
    EXPECT(stats_of(model).fetched_bytes == 0);
    tierline_close(model->client);
}

static void forking(const char *socket_path) {
    struct model model = loaded(connected(socket_path), 0);
    uint64_t job = begin_job(&model);
    run_layer(&model, 0);
    EXPECT(in_child(call_in_child, &model) == 0);
    EXPECT(in_child(read_in_child, &model) != 0);
    EXPECT(in_child(read_resident_in_child, &model) != 0);
    end_begun_job(&model, job);
}

static void connecting_in_a_child(const char *socket_path) {
    EXPECT(setenv("SCENARIO_SOCKET", socket_path, 1) == 0);
    struct model model = loaded(connected(socket_path), 0);
    uint64_t job = begin_job(&model);
    run_layer(&model, 0);
    EXPECT(in_child(connect_in_child, &model) == 0);
    end_begun_job(&model, job);
}

static sigjmp_buf escape;
static volatile sig_atomic_t seen;

static void on_foreign_fault(int number, siginfo_t *info, void *context) {
    (void)info;
    (void)context;
    seen = number;
    siglongjmp(escape, 1);
}

static void catch_faults(void) {
    struct sigaction action = {.sa_sigaction = on_foreign_fault, .sa_flags = SA_SIGINFO};
    EXPECT(sigaction(SIGSEGV, &action, NULL) == 0);
}

static void touch_foreign_memory(void) {
    volatile uint8_t *foreign = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT(foreign != MAP_FAILED);
    seen = 0;
    if (sigsetjmp(escape, 1) == 0) {
        EXPECT(foreign[0] == 1); /* never answered */
    }
    EXPECT(seen == SIGSEGV);
}

/* Faults that are not ours go to the program's own handler, installed before or
 * after us. */
static void foreign_faults(const char *socket_path) {
    catch_faults();
    struct model model = loaded(connected(socket_path), 0);
    expect_extent(&model, 3);
    touch_foreign_memory();
    expect_extent(&model, 5);
    catch_faults(); /* on top of ours, until the next job */
    touch_foreign_memory();
    EXPECT(run_job(&model).fetched_bytes == 0);
    expect_extent(&model, 7);
    touch_foreign_memory();
    tierline_close(model.client);
    touch_foreign_memory();
}

/* Reads an extent that cannot be served: the driver expects a sentence and our
 * death. */
static void reading_what_cannot_be_had(const char *socket_path) {
    struct model model = loaded(connected(socket_path), 0);
    expect_extent(&model, 3);
    ask_driver("loaded");
    expect_extent(&model, 5);
}

static void reading_before_the_seal(const char *socket_path) {
    tierline_client *client = connected(socket_path);
    void *base;
    OK(tierline_reserve(client, 0, 100000, 0, 1, &base));
    EXPECT(*(const volatile uint8_t *)base == 1);
}

/* The driver kills the agent while the stream stands still before extent 3, and
 * starts another. */
static void agent_lost_in_a_job(const char *socket_path) {
    struct model model = loaded(connected(socket_path), 0);
    uint64_t job = begin_job(&model);
    printf("streaming\n");
    fflush(stdout);
    for (uint32_t l = 0; l < EXTENTS; l++) {
        run_layer(&model, l);
    }
    OK(tierline_job_end(model.client, job, 0));
    EXPECT(stats_of(&model).fetched_bytes == 0);
    EXPECT(run_job(&model).fetched_bytes == 0);
    tierline_close(model.client);
}

static void agent_lost_between_jobs(const char *socket_path) {
    tierline_client *client = connected(socket_path);
    struct model models[2] = {loaded(client, 0), loaded(client, 2)};
    EXPECT(run_job(&models[0]).fetched_bytes == 0);
    ask_driver("kill the agent");
    expect_extent(&models[1], 6);
    EXPECT(run_job(&models[0]).fetched_bytes == 0);
    EXPECT(run_job(&models[1]).fetched_bytes == 0);
    ask_driver("kill the agent");
    uint64_t epoch_ns;
    uint64_t until_ns;
    OK(tierline_ready(client, 0, &epoch_ns, &until_ns));
    EXPECT(run_job(&models[1]).fetched_bytes == 0);
    tierline_close(client);
}

/* The agent dies, or hangs up, as soon as a certain request comes; it is
 * repeated. */
static void agent_lost_at_a_request(const char *socket_path) {
    struct model model = loaded(connected(socket_path), 0);
    printf("loaded\n");
    fflush(stdout);
    uint64_t job = begin_job(&model);
    run_layer(&model, 0);
    run_layer(&model, 5);
    run_layer(&model, 1); /* fetched */
    OK(tierline_job_end(model.client, job, 0));
    EXPECT(run_job(&model).fetched_bytes == 0);
    tierline_close(model.client);
}

static void job_revoked_by_a_restart(const char *socket_path) {
    struct model model = loaded(connected(socket_path), 0);
    uint64_t job = begin_job(&model);
    printf("streaming\n");
    fflush(stdout);
    int code = 0;
    for (uint32_t l = 0; l < EXTENTS; l++) {
        code = tierline_layer_begin(model.client, 0, l);
        expect_layer(&model, l);
        if (code == 0) {
            OK(tierline_layer_end(model.client, 0, l));
        }
    }
    EXPECT(code == TIERLINE_E_REVOKED);
    FAILS(TIERLINE_E_REVOKED, tierline_job_end(model.client, job, 0));
    EXPECT(run_job(&model).fetched_bytes == 0);
    tierline_close(model.client);
}

static void agent_gone_for_good(const char *socket_path) {
    struct model model = loaded(connected(socket_path), 0);
    ask_driver("kill the agent");
    uint64_t job;
    FAILS(TIERLINE_E_CONNECTION, tierline_job_begin(model.client, 0, 0, 1, 2, &job));
    FAILS(TIERLINE_E_CONNECTION, tierline_layer_begin(model.client, 0, 1));
    expect_extent(&model, 0); /* resident extents stay readable */
    ask_driver("start the agent");
    EXPECT(run_job(&model).fetched_bytes == 0);
    tierline_close(model.client);
}

const struct named_scenario fault_scenarios[] = {
    {"writing", writing},
    {"forking", forking},
    {"connecting_in_a_child", connecting_in_a_child},
    {"foreign_faults", foreign_faults},
    {"reading_what_cannot_be_had", reading_what_cannot_be_had},
    {"reading_before_the_seal", reading_before_the_seal},
    {"agent_lost_in_a_job", agent_lost_in_a_job},
    {"agent_lost_between_jobs", agent_lost_between_jobs},
    {"agent_lost_at_a_request", agent_lost_at_a_request},
    {"job_revoked_by_a_restart", job_revoked_by_a_restart},
    {"agent_gone_for_good", agent_gone_for_good},
    {NULL, NULL},
};
