/* Weights that are read while every signal is blocked, by whichever call. */
#include "scenario_kit.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <unistd.h>

static sigset_t all_but(int number) {
    sigset_t mask;
    sigfillset(&mask);
    sigdelset(&mask, number);
    return mask;
}

static void expect_blocked(bool blocked) {
    sigset_t found;
    EXPECT(pthread_sigmask(SIG_SETMASK, NULL, &found) == 0);
    EXPECT(sigismember(&found, SIGSEGV) == blocked);
    EXPECT(sigismember(&found, SIGTERM) == blocked);
}

static void *read_weights(void *context) {
    for (uint32_t e = 0; e < EXTENTS; e++) {
        expect_extent(context, e);
    }
    return NULL;
}

static void read_in_a_thread(struct model *model, const sigset_t *mask) {
    (void)run_job(model); /* takes away what was fetched */
    pthread_attr_t attributes;
    pthread_t thread;
    EXPECT(pthread_attr_init(&attributes) == 0);
    EXPECT(mask == NULL || pthread_attr_setsigmask_np(&attributes, mask) == 0);
    EXPECT(pthread_create(&thread, &attributes, read_weights, model) == 0);
    EXPECT(pthread_join(thread, NULL) == 0);
    pthread_attr_destroy(&attributes);
}

static struct model *of_handler;
static volatile sig_atomic_t handled;

static void read_in_a_handler(int number) {
    (void)number;
    int kept = errno;
    expect_extent(of_handler, 6);
    handled = 1;
    errno = kept;
}

static int epoll;

static int by_sigsuspend(const sigset_t *mask) {
    return sigsuspend(mask);
}

static int by_ppoll(const sigset_t *mask) {
    return ppoll(NULL, 0, NULL, mask);
}

static int by_pselect(const sigset_t *mask) {
    return pselect(0, NULL, NULL, NULL, NULL, mask);
}

static int by_epoll_pwait(const sigset_t *mask) {
    struct epoll_event event;
    return epoll_pwait(epoll, &event, 1, -1, mask);
}

static int by_epoll_pwait2(const sigset_t *mask) {
    struct epoll_event event;
    return epoll_pwait2(epoll, &event, 1, NULL, mask);
}

static int (*const waits[])(const sigset_t *mask) = {by_sigsuspend, by_ppoll, by_pselect,
                                                     by_epoll_pwait, by_epoll_pwait2};

/* A handler runs under the mask of the call that it interrupts. */
static void read_within_calls(struct model *model) {
    of_handler = model;
    struct sigaction action = {.sa_handler = read_in_a_handler};
    EXPECT(sigaction(SIGUSR1, &action, NULL) == 0);
    epoll = epoll_create1(EPOLL_CLOEXEC);
    EXPECT(epoll >= 0);
    sigset_t mask = all_but(SIGUSR1);
    for (size_t i = 0; i < sizeof waits / sizeof *waits; i++) {
        (void)run_job(model);
        handled = 0;
        EXPECT(raise(SIGUSR1) == 0); /* blocked: it waits for the call */
        EXPECT(handled == 0);
        EXPECT(waits[i](&mask) == -1 && errno == EINTR);
        EXPECT(handled == 1);
        expect_blocked(true);
    }
    close(epoll);
}

static void blocking_all_signals(const char *socket_path) {
    struct model model = loaded(connected(socket_path), 0);
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    expect_blocked(false);
    EXPECT(pthread_sigmask(SIG_BLOCK, &all, &before) == 0);
    expect_blocked(true);
    read_weights(&model);
    EXPECT(sigprocmask(SIG_SETMASK, &before, NULL) == 0);
    expect_blocked(false);
    EXPECT(sigprocmask(SIG_SETMASK, &all, NULL) == 0);
    (void)run_job(&model);
    read_weights(&model);
    read_in_a_thread(&model, NULL);
    read_in_a_thread(&model, &all);
    read_within_calls(&model);
    EXPECT(pthread_sigmask(SIG_UNBLOCK, &all, &before) == 0);
    EXPECT(sigismember(&before, SIGSEGV) == 1);
    expect_blocked(false);
    tierline_close(model.client);
}

/* The driver starts it so. */
static void started_with_all_blocked(const char *socket_path) {
    expect_blocked(true);
    struct model model = loaded(connected(socket_path), 0);
    read_weights(&model);
    read_in_a_thread(&model, NULL);
    tierline_close(model.client);
}

const struct named_scenario mask_scenarios[] = {
    {"blocking_all_signals", blocking_all_signals},
    {"started_with_all_blocked", started_with_all_blocked},
    {NULL, NULL},
};
