/* What calls cost in jobs of a task, and what beginning and ending a job costs where the lease is
 * left open to it: see call_costs.h. The arguments are the agent's socket and the number of
 * extents. */
#include "call_costs.h"
#include "gpu_kit.h"

enum { JOBS = 300 };

static struct task task;
static uint64_t job;

static void begin_job(void) {
    job = begin(&task);
}

static void end_job(void) {
    end(&task, job);
}

static void time_jobs(void) {
    static double begins_ns[JOBS], ends_ns[JOBS];
    for (uint32_t i = 0; i < JOBS; i++) {
        uint64_t from_ns = now_ns();
        job = begin(&task);
        uint64_t begun_ns = now_ns();
        OK(tierline_job_end(task.client, job, 0));
        ends_ns[i] = (double)(now_ns() - begun_ns);
        begins_ns[i] = (double)(begun_ns - from_ns);
        HOLDS(jobs(&task) == job); /* counted, so that the lease is open to the next one */
    }
    print_costs("begin of a job", begins_ns, JOBS);
    print_costs("end of a job", ends_ns, JOBS);
}

int main(int argc, char **argv) {
    HOLDS(argc == 3);
    use_gpu();
    load(&task, argv[1], 0, (uint32_t)strtoul(argv[2], NULL, 10), 1);
    CUdeviceptr weights[MOST_WEIGHTS];
    for (uint32_t w = 0; w < task.count; w++) {
        weights[w] = task.weights[w].address;
    }
    time_calls(weights, task.count, begin_job, end_job);
    time_jobs();
    tierline_close(task.client);
    return 0;
}
