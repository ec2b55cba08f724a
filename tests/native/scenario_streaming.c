/* Jobs through an aliased ring: every order of layers, right bit by bit.
 * Extents 0 and 4 are resident, the other seven go through two slots (or three)
 * that hold poison between jobs. */
#include "scenario_kit.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static void in_order(const char *socket_path) {
    struct model model = loaded(connected(socket_path), 0);
    for (int i = 0; i < 5; i++) {
        tierline_job_stats stats = run_job(&model);
        EXPECT(stats.fetched_bytes == 0 && stats.streamed_extents == 7);
    }
    tierline_close(model.client);
}

static void skipping(const char *socket_path) {
    struct model model = loaded(connected(socket_path), 0);
    const uint32_t some[3][4] = {{0, 3, 7, 8}, {8, 8, 8, 8}, {2, 5, 6, 7}};
    for (int i = 0; i < 3; i++) {
        uint64_t job = begin_job(&model);
        uint32_t last = EXTENTS;
        for (int k = 0; k < 4 && some[i][k] != last; k++) {
            last = some[i][k];
            run_layer(&model, last);
        }
        OK(tierline_job_end(model.client, job, 0));
        EXPECT(stats_of(&model).fetched_bytes == 0);
    }
    EXPECT(run_job(&model).fetched_bytes == 0);
    tierline_close(model.client);
}

static void going_back(const char *socket_path) {
    struct model model = loaded(connected(socket_path), 0);
    uint64_t job = begin_job(&model);
    for (uint32_t l = 0; l < 7; l++) {
        run_layer(&model, l);
    }
    run_layer(&model, 2);
    EXPECT(stats_of(&model).fetched_bytes == 2 * model.extent_bytes);
    run_layer(&model, 2);
    EXPECT(stats_of(&model).fetched_bytes == 2 * model.extent_bytes);
    run_layer(&model, 0);
    EXPECT(stats_of(&model).fetched_bytes == 3 * model.extent_bytes);
    run_layer(&model, 7);
    run_layer(&model, 8);
    EXPECT(stats_of(&model).fetched_bytes == 3 * model.extent_bytes);
    OK(tierline_job_end(model.client, job, 0));
    EXPECT(run_job(&model).fetched_bytes == 0);
    tierline_close(model.client);
}

static void backwards(const char *socket_path) {
    struct model model = loaded(connected(socket_path), 0);
    uint64_t job = begin_job(&model);
    for (uint32_t l = EXTENTS; l-- > 0;) {
        run_layer(&model, l);
    }
    OK(tierline_job_end(model.client, job, 0));
    EXPECT(run_job(&model).fetched_bytes == 0);
    tierline_close(model.client);
}

static void leaving_early(const char *socket_path) {
    struct model model = loaded(connected(socket_path), 0);
    for (int i = 0; i < 4; i++) {
        uint64_t job = begin_job(&model);
        run_layer(&model, 0);
        OK(tierline_layer_begin(model.client, 0, 1)); /* begun, never ended */
        OK(tierline_job_end(model.client, job, 0));
        expect_layer(&model, 1); /* the ring is somebody else's now */
    }
    EXPECT(run_job(&model).fetched_bytes == 0);
    tierline_close(model.client);
}

static void outside_a_job(const char *socket_path) {
    struct model model = loaded(connected(socket_path), 0);
    for (uint32_t e = 0; e < EXTENTS; e++) {
        expect_extent(&model, e);
    }
    EXPECT(run_job(&model).fetched_bytes == 0);
    for (uint32_t e = EXTENTS; e-- > 0;) {
        expect_extent(&model, e);
    }
    run_layer(&model, 5);
    EXPECT(run_job(&model).fetched_bytes == 0);
    tierline_close(model.client);
}

/* The code reads what no gate announced, while the ring streams. */
static void unforeseen(const char *socket_path) {
    struct model model = loaded(connected(socket_path), 0);
    uint64_t job = begin_job(&model);
    for (uint32_t l = 0; l < EXTENTS; l++) {
        OK(tierline_layer_begin(model.client, 0, l));
        expect_layer(&model, l);
        expect_extent(&model, EXTENTS - 1 - l);
        expect_extent(&model, (l * 5) % EXTENTS);
        OK(tierline_layer_end(model.client, 0, l));
    }
    OK(tierline_job_end(model.client, job, 0));
    EXPECT(run_job(&model).fetched_bytes == 0);
    tierline_close(model.client);
}

/* A program that asks the kernel without the C library is answered EFAULT for a closed extent,
 * never wrong bytes. */
static void lease_alone(const char *socket_path) {
    struct model model = loaded(connected(socket_path), 0);
    uint64_t job;
    OK(tierline_job_begin(model.client, TIERLINE_NO_ARENA, TIERLINE_JOB_WARMUP, 1, 2, &job));
    expect_extent(&model, 3);
    run_layer(&model, 5); /* not its arena's job: fetched */
    OK(tierline_job_end(model.client, job, 0));
    int ends[2];
    EXPECT(pipe(ends) == 0);
    EXPECT(syscall(SYS_write, ends[1], model.base + 8 * model.extent_bytes, 1) == -1);
    close(ends[0]);
    close(ends[1]);
    EXPECT(run_job(&model).fetched_bytes == 0);
    tierline_close(model.client);
}

static void revoked(const char *socket_path) {
    struct model model = loaded(connected(socket_path), 0);
    uint64_t job = begin_job(&model);
    int code = 0;
    for (uint32_t l = 0; l < EXTENTS; l++) {
        code = tierline_layer_begin(model.client, 0, l);
        if (code != 0) {
            break;
        }
        expect_layer(&model, l);
        OK(tierline_layer_end(model.client, 0, l));
    }
    EXPECT(code == TIERLINE_E_REVOKED);
    for (uint32_t l = 0; l < EXTENTS; l++) {
        FAILS(TIERLINE_E_REVOKED, tierline_layer_begin(model.client, 0, l));
        expect_layer(&model, l); /* right, and slow */
    }
    FAILS(TIERLINE_E_REVOKED, tierline_job_end(model.client, job, 0));
    OK(tierline_job_begin(model.client, TIERLINE_NO_ARENA, 0, 1, 2, &job));
    OK(tierline_job_end(model.client, job, 0));
    tierline_close(model.client);
}

/* Two threads run jobs, on two arenas of one client; each waits for the other's
 * to end. */
static void *run_jobs(void *argument) {
    const struct model *model = argument;
    for (int i = 0; i < 10; i++) {
        uint64_t job = begin_job(model);
        for (uint32_t l = 0; l < EXTENTS; l++) {
            run_layer(model, l);
        }
        OK(tierline_job_end(model->client, job, 0));
    }
    return NULL;
}

static void two_threads_with_jobs(const char *socket_path) {
    tierline_client *client = connected(socket_path);
    struct model models[2] = {loaded(client, 0), loaded(client, 1)};
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) {
        EXPECT(pthread_create(&threads[i], NULL, run_jobs, &models[i]) == 0);
    }
    for (int i = 0; i < 2; i++) {
        EXPECT(pthread_join(threads[i], NULL) == 0);
    }
    tierline_close(client);
}

/* One thread runs jobs while others read whatever they like. */
static void *read_around(void *argument) {
    const struct model *model = argument;
    for (uint32_t i = 0; i < 40; i++) {
        expect_extent(model, (i * 7 + 3) % EXTENTS);
    }
    return NULL;
}

static void readers_between_jobs(const char *socket_path) {
    struct model model = loaded(connected(socket_path), 0);
    pthread_t threads[3];
    EXPECT(pthread_create(&threads[0], NULL, run_jobs, &model) == 0);
    for (int i = 1; i < 3; i++) {
        EXPECT(pthread_create(&threads[i], NULL, read_around, &model) == 0);
    }
    for (int i = 0; i < 3; i++) {
        EXPECT(pthread_join(threads[i], NULL) == 0);
    }
    tierline_close(model.client);
}

/* The thread that ends a job need not be the one that began it. */
static void *end_job(void *argument) {
    const struct model *model = argument;
    OK(tierline_job_end(model->client, 1, 0));
    return NULL;
}

static void a_job_ended_elsewhere(const char *socket_path) {
    struct model model = loaded(connected(socket_path), 0);
    EXPECT(begin_job(&model) == 1);
    pthread_t thread;
    EXPECT(pthread_create(&thread, NULL, end_job, &model) == 0);
    run_job(&model); /* waits until the first has ended */
    EXPECT(pthread_join(thread, NULL) == 0);
    tierline_close(model.client);
}

/* What a program has opened under the library's numbers: every other one a
 * socket on which something waits to be read. */
#define MOST_NUMBERS 256
#define FAR 700
struct own {
    int number;
    int peer; /* of a socket; -1: a file */
};

static void open_own(struct own *own, bool is_socket) {
    own->peer = -1;
    if (is_socket) {
        int ends[2];
        EXPECT(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
        own->peer = fcntl(ends[1], F_DUPFD, FAR);
        EXPECT(own->peer >= FAR && dup2(ends[0], own->number) == own->number);
        EXPECT(write(own->peer, "mine", 4) == 4);
        for (int e = 0; e < 2; e++) {
            if (ends[e] != own->number) {
                close(ends[e]);
            }
        }
        return;
    }
    FILE *file = tmpfile();
    EXPECT(file != NULL);
    int number = fcntl(fileno(file), F_DUPFD, FAR);
    EXPECT(number >= FAR);
    fclose(file);
    EXPECT(dup2(number, own->number) == own->number);
    close(number);
    EXPECT(write(own->number, "mine", 4) == 4);
}

static void expect_own(const struct own *own) {
    char found[16];
    struct stat state;
    if (own->peer >= 0) {
        EXPECT(recv(own->number, found, sizeof found, MSG_PEEK | MSG_DONTWAIT) == 4);
        EXPECT(recv(own->peer, found, sizeof found, MSG_DONTWAIT) < 0 && errno == EAGAIN);
        return;
    }
    EXPECT(fstat(own->number, &state) == 0 && state.st_size == 4);
    EXPECT(lseek(own->number, 0, SEEK_CUR) == 4);
    EXPECT(pread(own->number, found, sizeof found, 0) == 4 && memcmp(found, "mine", 4) == 0);
}

/* Closes what the library has, as daemons do, and opens files of its own there. */
static size_t take_over(struct own *taken) {
    size_t count = 0;
    for (int number = 3; number < FAR; number++) {
        if (fcntl(number, F_GETFD) >= 0) {
            EXPECT(count < MOST_NUMBERS);
            taken[count++].number = number;
            close(number);
        }
    }
    for (size_t i = 0; i < count; i++) {
        open_own(&taken[i], i % 2 == 0);
    }
    return count;
}

static void expect_all_own(const struct own *taken, size_t count) {
    for (size_t i = 0; i < count; i++) {
        expect_own(&taken[i]);
    }
}

static void descriptors_taken_over(const char *socket_path) {
    struct model model = loaded(connected(socket_path), 0);
    expect_extent(&model, 3); /* a private copy, to be taken back by the next job */
    run_job(&model);
    struct own between[MOST_NUMBERS];
    size_t count = take_over(between);
    EXPECT(count > 5);
    expect_extent(&model, 5);
    EXPECT(run_job(&model).fetched_bytes == 0);
    expect_all_own(between, count);

    struct own within[MOST_NUMBERS];
    uint64_t job = begin_job(&model);
    for (uint32_t l = 0; l < EXTENTS; l++) {
        if (l == 4) {
            count = take_over(within); /* also what it had opened before */
        }
        run_layer(&model, l);
    }
    OK(tierline_job_end(model.client, job, 0));
    EXPECT(run_job(&model).fetched_bytes == 0);
    expect_all_own(within, count);
    tierline_close(model.client);
    expect_all_own(within, count);
}

const struct named_scenario streaming_scenarios[] = {
    {"in_order", in_order},
    {"skipping", skipping},
    {"going_back", going_back},
    {"backwards", backwards},
    {"leaving_early", leaving_early},
    {"outside_a_job", outside_a_job},
    {"unforeseen", unforeseen},
    {"lease_alone", lease_alone},
    {"revoked", revoked},
    {"two_threads_with_jobs", two_threads_with_jobs},
    {"readers_between_jobs", readers_between_jobs},
    {"a_job_ended_elsewhere", a_job_ended_elsewhere},
    {"descriptors_taken_over", descriptors_taken_over},
    {NULL, NULL},
};
