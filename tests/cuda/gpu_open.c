/* Jobs of a resident task that take the lease where the agent left it open, told one by one: what
 * is to be done comes as lines on standard input, and each is answered by one.
 *
 * The first argument names a scenario, the second is the agent's socket, the third the number of
 * extents; the fourth is a file that all tasks of a test map. */
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "gpu_kit.h"

enum { TIMED = 2000 };

static struct task task;
static const char *socket_path, *shared_path;
static uint32_t extents;

static void load_all(void) {
    use_gpu();
    load(&task, socket_path, 0, extents, 1);
}

static void pass(void) {
    clear(&task);
    for (uint32_t w = 0; w < task.count; w++) {
        OK(launch(&task, w, w, NULL, 0));
    }
    check(&task, 0, task.count, NULL);
}

/* A fork's child has none of it: neither the job nor the lease, and its end changes neither. */
static void fork_inside(uint64_t job) {
    pid_t child = fork();
    HOLDS(child >= 0);
    if (child == 0) {
        uint64_t other;
        bool refused =
            tierline_job_end(task.client, job, 0) == TIERLINE_E_FORKED &&
            tierline_job_begin(task.client, 0, 0, 0, UINT64_MAX >> 2, &other) == TIERLINE_E_FORKED;
        _exit(refused ? 0 : 1);
    }
    int status;
    HOLDS(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void told(void) {
    uint64_t job = 0;
    char line[64];
    load_all();
    puts("loaded");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin) != NULL && strcmp(line, "quit\n") != 0) {
        if (strcmp(line, "begin\n") == 0 || strcmp(line, "job\n") == 0) {
            job = begin(&task);
            pass();
        }
        if (strcmp(line, "fork\n") == 0) {
            fork_inside(job);
        }
        if (strcmp(line, "end\n") == 0 || strcmp(line, "job\n") == 0) {
            pass();
            end(&task, job);
        }
        fputs(line, stdout);
        fflush(stdout);
    }
}

/* Each job is counted before the next one begins, so all but the first take the lease. */
static void alone(void) {
    load_all();
    for (uint64_t i = 1; i <= 100; i++) {
        uint64_t job = begin(&task);
        if (i % 2 == 0) {
            HOLDS(jobs(&task) == i - 1); /* what is asked within a job comes after its begin */
        }
        pass();
        end(&task, job);
        HOLDS(jobs(&task) == i);
    }
}

/* As fast as it goes: the agent's counting lags. */
static void unpaced(void) {
    load_all();
    for (uint64_t i = 0; i < 1000; i++) {
        end(&task, begin(&task));
    }
    HOLDS(jobs(&task) == 1000);
}

/* A kernel that reads no weights. */
static void work(uint64_t duration_ns) {
    void *parameters[] = {&duration_ns};
    OK(cuLaunchKernel(task.spin, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL));
}

/* As a server does: each job's input goes up before it and is worked with, its output is worked
 * with and comes down after it, and none of that is a job, or withdraws the cached lease. Copies of
 * more than 16 MiB wait for the lease. */
static void served(void) {
    enum { LARGE = 18 << 20 };
    load_all();
    CUdeviceptr input;
    uint8_t *host;
    OK(cuMemAlloc(&input, LARGE));
    OK(cuMemHostAlloc((void **)&host, LARGE, 0));
    end(&task, begin(&task)); /* from now on it is known to begin its jobs itself */
    HOLDS(jobs(&task) == 1);
    for (uint64_t i = 2; i <= 100; i++) {
        memset(host, (int)i, 4096);
        OK(cuMemcpyHtoDAsync(input, host, 4096, NULL));
        work(1000);
        uint64_t job = begin(&task);
        pass();
        end(&task, job);
        work(1000);
        memset(host, 0, 4096);
        OK(cuMemcpyDtoH(host, input, 4096));
        HOLDS(host[0] == (uint8_t)i && host[4095] == (uint8_t)i);
        HOLDS(jobs(&task) == i);
    }
    fputs("served\n", stdout);
    fflush(stdout);
    HOLDS(getchar() == '\n');
    for (int copied = 0; copied <= LARGE; copied += LARGE / 3) {
        OK(cuMemcpyDtoH(host, input, LARGE / 3));
    }
}

/* Goes on with work outside its jobs, with pauses that are shorter than those after which it counts
 * as idle, until it is told to end. */
static void restless(void) {
    struct pollfd told = {.fd = STDIN_FILENO, .events = POLLIN};
    load_all();
    end(&task, begin(&task));
    HOLDS(jobs(&task) == 1);
    puts("works");
    fflush(stdout);
    while (poll(&told, 1, 0) == 0) {
        work(1000);
        nanosleep(&(struct timespec){.tv_nsec = 500000}, NULL);
    }
}

/* A first job, as a row of jobs without rank: what each launched runs on when it ends. */
static void starting(void) {
    enum { MODULES = 16, KERNELS = 4, KERNEL_NS = 10000000 };
    puts("begins");
    fflush(stdout);
    for (int i = 0; i < MODULES; i++) {
        uint64_t job;
        OK(tierline_job_begin(task.client, TIERLINE_NO_ARENA, TIERLINE_JOB_WARMUP, 0,
                              UINT64_MAX >> 2, &job));
        for (int kernel = 0; kernel < KERNELS; kernel++) {
            work(KERNEL_NS);
        }
        OK(tierline_job_end(task.client, job, 0));
    }
}

static void starting_first(void) {
    load_all();
    starting();
}

/* Its second model's, while the lease is left open to it. */
static void starting_later(void) {
    load_all();
    end(&task, begin(&task));
    HOLDS(jobs(&task) == 1);
    starting();
}

/* A program that ends after its last job and closes nothing. */
static void leaving(void) {
    load_all();
    for (int i = 0; i < 20; i++) {
        uint64_t job = begin(&task);
        pass();
        end(&task, job);
    }
    puts("held");
    exit(0);
}

static uint64_t random_below(uint64_t *state, uint64_t bound) {
    *state = *state * 6364136223846793005U + 1442695040888963407U;
    return (*state >> 33) % bound;
}

/* Nobody else is inside a job while this one is. */
static void contending(void) {
    load_all();
    int file = open(shared_path, O_RDWR);
    uint32_t *inside = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    HOLDS(inside != MAP_FAILED);
    uint64_t state = (uint64_t)getpid();
    for (int i = 0; i < 300; i++) {
        uint64_t job = begin(&task);
        HOLDS(__atomic_fetch_add(inside, 1, __ATOMIC_SEQ_CST) == 0);
        clear(&task);
        OK(launch(&task, 0, 0, NULL, random_below(&state, 200000)));
        check(&task, 0, 1, NULL);
        HOLDS(__atomic_fetch_sub(inside, 1, __ATOMIC_SEQ_CST) == 1);
        end(&task, job);
        /* Some jobs in a row, which find the lease open while the others pause. */
        uint64_t pause_ns = random_below(&state, 8) == 0 ? random_below(&state, 40000000) : 0;
        nanosleep(&(struct timespec){.tv_nsec = (long)pause_ns}, NULL);
    }
    HOLDS(jobs(&task) == 300);
}

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000U + (uint64_t)now.tv_nsec;
}

/* Prints what begin and end of a job take together, in ns, one job a line; jobs last about 1 ms. */
static void timed(void) {
    load_all();
    for (int i = 0; i < TIMED; i++) {
        uint64_t start_ns = now_ns();
        uint64_t job = begin(&task);
        uint64_t begun_ns = now_ns();
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        uint64_t over_ns = now_ns();
        end(&task, job);
        printf("%llu %llu\n", (unsigned long long)(begun_ns - start_ns),
               (unsigned long long)(now_ns() - over_ns));
    }
}

int main(int argc, char **argv) {
    static const struct scenario scenarios[] = {
        {"told", told},
        {"alone", alone},
        {"unpaced", unpaced},
        {"contending", contending},
        {"timed", timed},
        {"served", served},
        {"leaving", leaving},
        {"restless", restless},
        {"starting_first", starting_first},
        {"starting_later", starting_later},
    };
    HOLDS(argc == 5);
    socket_path = argv[2];
    extents = (uint32_t)strtoul(argv[3], NULL, 10);
    shared_path = argv[4];
    return run_scenario(argv[1], scenarios, sizeof scenarios / sizeof *scenarios, &task);
}
