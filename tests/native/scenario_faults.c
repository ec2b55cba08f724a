/* Writes, foreign faults, and an agent that dies and comes back. */
#include "scenario_kit.h"

#include <setjmp.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>

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
    /* The API gives weights as read-only.
     * NOLINTNEXTLINE(performance-no-int-to-ptr) */
    uintptr_t at = (uintptr_t)model->base + extent * model->extent_bytes;
    /* The API gives weights as read-only.
     * NOLINTNEXTLINE(performance-no-int-to-ptr) */
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

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
/* As `faulthandler.enable()` and `disable()` do: what a program set it reads
 * back, and putting back what it found takes nothing of ours away. */
static void change_handlers(const struct model *model) {
    struct sigaction usual;
    struct sigaction none = {.sa_handler = SIG_DFL};
    struct sigaction found;
    expect_extent(model, 6); /* faults of weights are ours all the same */
    EXPECT(sigaction(SIGSEGV, &none, &usual) == 0);
    expect_extent(model, 1);
    EXPECT(sigaction(SIGSEGV, &usual, &found) == 0);
    EXPECT(found.sa_handler == SIG_DFL);
    touch_foreign_memory();
    EXPECT(signal(SIGSEGV, SIG_DFL) != SIG_ERR);
    expect_extent(model, 2);
    EXPECT(signal(SIGSEGV, SIG_IGN) == SIG_DFL);
    expect_extent(model, 7);
    catch_faults();
    touch_foreign_memory();
}
#endif

/* Faults that are not ours go to the program's own handler, installed before or
 * after us. */
static void foreign_faults(const char *socket_path) {
    catch_faults();
    struct model model = loaded(connected(socket_path), 0);
    expect_extent(&model, 3);
    touch_foreign_memory();
    expect_extent(&model, 5);
    catch_faults(); /* after us */
    touch_foreign_memory();
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    change_handlers(&model); /* a sanitizer's runtime has sigaction itself */
#endif
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
