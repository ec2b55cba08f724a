/* Fault injection. See faults.h.
 *
 * The control file is looked at whenever a call enters the driver, by its modification time, so a
 * test can write a rule and be sure that the next call obeys it. Rules of the environment come
 * first, those of the file replace the file's earlier ones; their counts begin again.
 *
 * Invariant: without SIMCUDA_FAULTS and SIMCUDA_FAULT_FILE a call costs one relaxed load.
 */
#include "faults.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "context.h"
#include "errors.h"
#include "machine.h"

enum { MAX_RULES = 64 };

struct rule {
    char function[96];
    uint64_t at; /* the call that it is about, counted from 1 */
    uint64_t seen;
    CUresult error;
    bool onwards;
    bool from_file;
    bool waits; /* it does not fail, but waits while `file` is there */
    char file[256];
};

static pthread_mutex_t rules_lock = PTHREAD_MUTEX_INITIALIZER;
static struct rule rules[MAX_RULES];
static size_t rule_count;
static struct timespec file_time;
static off_t file_size = -1;
static atomic_bool faults_wanted;

static bool parse_link(const char *text) {
    char name[16];
    unsigned device;
    unsigned long long thousandths;
    int used = 0;
    if (sscanf(text, "link %15s %u %llu %n", name, &device, &thousandths, &used) != 3 ||
        text[used] != '\0' || device >= machine_config()->devices || thousandths == 0) {
        return false;
    }
    for (int engine = 0; engine < ENGINE_COUNT; engine++) {
        if (strcmp(name, engine_names[engine]) == 0) {
            machine_set_speed((int)device, (enum engine)engine, thousandths);
            return true;
        }
    }
    return false;
}

static bool parse_device(const char *text) {
    char what[16];
    unsigned device;
    unsigned code;
    if (sscanf(text, "device %u xid %u", &device, &code) == 2 &&
        device < machine_config()->devices && code != 0) {
        machine_report_xid((int)device, code);
        return true;
    }
    if (sscanf(text, "device %u %15s", &device, what) != 2 || device >= machine_config()->devices) {
        return false;
    }
    bool lost = strcmp(what, "lost") == 0;
    if (!lost && strcmp(what, "restored") != 0) {
        return false;
    }
    machine_set_lost((int)device, lost);
    return true;
}

static bool is_function(const char *name) {
    for (size_t i = 0; i < ENTRY_COUNT; i++) {
        if (strcmp(entry_table[i].symbol, name) == 0 || strcmp(entry_table[i].name, name) == 0) {
            return true;
        }
    }
    return false;
}

/* "call" and "hold": which calls, and what becomes of them. */
static bool parse_call(const char *text, bool from_file) {
    struct rule rule = {.from_file = from_file};
    char verb[8];
    char count[24];
    char what[sizeof rule.file];
    if (sscanf(text, "%7s %95s %23s %255s", verb, rule.function, count, what) != 4 ||
        rule_count == MAX_RULES || !is_function(rule.function)) {
        return false;
    }
    char *end = NULL;
    rule.at = strtoull(count, &end, 10);
    rule.onwards = *end == '+';
    if (rule.at == 0 || end[rule.onwards ? 1 : 0] != '\0') {
        return false;
    }
    if (strcmp(verb, "hold") == 0) {
        rule.waits = *what == '/' && strlen(what) < sizeof what - 1; /* not cut */
        snprintf(rule.file, sizeof rule.file, "%s", what);
    } else if (strcmp(verb, "call") == 0) {
        char plain[sizeof what + 16];
        snprintf(plain, sizeof plain, "CUDA_ERROR_%s", what);
        rule.error = error_by_name(plain);
    }
    if (!rule.waits && rule.error == CUDA_SUCCESS) {
        return false;
    }
    rules[rule_count++] = rule;
    return true;
}

/* Takes the rules of a text apart, in place. Under the lock. */
static bool parse_rules(char *text, bool from_file) {
    bool good = true;
    char *rest = NULL;
    for (char *line = strtok_r(text, ";\n", &rest); line != NULL;
         line = strtok_r(NULL, ";\n", &rest)) {
        line += strspn(line, " \t");
        if (*line == '\0' || *line == '#') {
            continue;
        }
        if (!parse_call(line, from_file) && !parse_device(line) && !parse_link(line)) {
            fprintf(stderr,
                    "simcuda: cannot read the fault '%s'; include/simcuda.h has the grammar\n",
                    line);
            good = false;
        }
    }
    return good;
}

static bool file_refresh(void) {
    const char *path = getenv("SIMCUDA_FAULT_FILE");
    struct stat now;
    if (path == NULL || stat(path, &now) != 0) {
        return true;
    }
    if (now.st_size == file_size && now.st_mtim.tv_sec == file_time.tv_sec &&
        now.st_mtim.tv_nsec == file_time.tv_nsec) {
        return true;
    }
    file_size = now.st_size;
    file_time = now.st_mtim;
    size_t kept = 0;
    for (size_t i = 0; i < rule_count; i++) {
        if (!rules[i].from_file) {
            rules[kept++] = rules[i];
        }
    }
    rule_count = kept;
    FILE *file = fopen(path, "re");
    if (file == NULL) {
        return true;
    }
    char *text = calloc(1, (size_t)now.st_size + 1);
    bool good = text != NULL;
    if (good) {
        size_t length = fread(text, 1, (size_t)now.st_size, file);
        text[length] = '\0';
        good = parse_rules(text, true);
    }
    free(text);
    fclose(file);
    return good;
}

bool faults_start(void) {
    bool good = true;
    const char *given = getenv("SIMCUDA_FAULTS");
    pthread_mutex_lock(&rules_lock);
    if (given != NULL) {
        char *text = strdup(given);
        good = text != NULL && parse_rules(text, false);
        free(text);
    }
    good = file_refresh() && good;
    pthread_mutex_unlock(&rules_lock);
    atomic_store(&faults_wanted, given != NULL || getenv("SIMCUDA_FAULT_FILE") != NULL);
    return good;
}

static void wait_while(const char *there) {
    while (access(there, F_OK) == 0) {
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
}

CUresult faults_on_call(const struct entry *entry) {
    if (!atomic_load_explicit(&faults_wanted, memory_order_relaxed)) {
        return CUDA_SUCCESS;
    }
    CUresult error = CUDA_SUCCESS;
    char held_by[256] = "";
    pthread_mutex_lock(&rules_lock);
    file_refresh();
    for (size_t i = 0; i < rule_count; i++) {
        struct rule *rule = &rules[i];
        if (strcmp(entry->symbol, rule->function) != 0 &&
            strcmp(entry->name, rule->function) != 0) {
            continue;
        }
        rule->seen++;
        if (rule->seen != rule->at && !(rule->onwards && rule->seen > rule->at)) {
            continue;
        }
        if (rule->waits) {
            memcpy(held_by, rule->file, sizeof held_by);
        } else {
            error = rule->error;
        }
    }
    pthread_mutex_unlock(&rules_lock);
    if (held_by[0] != '\0') {
        wait_while(held_by);
    }
    if (error != CUDA_SUCCESS && error_is_sticky(error)) {
        context_kill_current(error);
    }
    return error;
}
