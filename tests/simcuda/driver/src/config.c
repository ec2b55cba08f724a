/* Settings from SIMCUDA_CONFIG's file and the environment, which wins. An unknown key is an error:
 * a misspelt bandwidth would otherwise make a test pass on an unthrottled link. */
#include "config.h"

#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "entry.h"

const char *const engine_names[ENGINE_COUNT] = {"h2d", "d2h", "d2d", "peer", "compute"};

/* Settings that other modules read themselves. */
static const char *const elsewhere[] = {"STATE",  "CONFIG",     "FAULTS", "FAULT_FILE",
                                        "REPORT", "CALLS_WAIT", "LATE"};

static bool parse_count(const char *text, uint64_t *value) {
    char *end = NULL;
    errno = 0;
    unsigned long long number = strtoull(text, &end, 10);
    if (errno != 0 || end == text || !isdigit((unsigned char)text[0])) {
        return false;
    }
    static const struct {
        const char *suffix;
        unsigned shift;
    } suffixes[] = {{"", 0}, {"Ki", 10}, {"Mi", 20}, {"Gi", 30}};
    for (size_t i = 0; i < sizeof suffixes / sizeof *suffixes; i++) {
        if (strcmp(end, suffixes[i].suffix) == 0 && number <= ULLONG_MAX >> suffixes[i].shift) {
            *value = number << suffixes[i].shift;
            return true;
        }
    }
    return false;
}

static bool config_set(struct config *config, const char *key, const char *value,
                       const char *source) {
    const struct {
        const char *key;
        uint64_t *slot;
        uint64_t least;
        uint64_t most;
    } numbers[] = {
        {"DEVICES", &config->devices, 1, MAX_DEVICES},
        {"MEMORY", &config->memory_bytes, 1 << 21, 1ULL << 46},
        {"GRANULARITY", &config->granularity_bytes, 1 << 16, 1 << 21},
        {"CONTEXT", &config->context_bytes, 0, 1ULL << 40},
        {"H2D", &config->bandwidth[ENGINE_H2D], 0, 1ULL << 50},
        {"D2H", &config->bandwidth[ENGINE_D2H], 0, 1ULL << 50},
        {"D2D", &config->bandwidth[ENGINE_D2D], 0, 1ULL << 50},
        {"PEER", &config->bandwidth[ENGINE_PEER], 0, 1ULL << 50},
        {"PAGEABLE", &config->pageable_bandwidth, 0, 1ULL << 50},
        {"COPY_OVERHEAD", &config->copy_overhead_ns, 0, 1000000000},
        {"TIMESLICE", &config->timeslice_ns, 1000, 1000000000},
        {"COMPUTE", &config->compute_thousandths, 0, 1000000},
    };
    if (strcmp(key, "NAME") == 0) {
        if (strlen(value) < sizeof config->name) {
            memset(config->name, 0, sizeof config->name);
            memcpy(config->name, value, strlen(value));
            return true;
        }
    }
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        if (strcmp(key, numbers[i].key) != 0) {
            continue;
        }
        uint64_t number = 0;
        if (parse_count(value, &number) && number >= numbers[i].least &&
            number <= numbers[i].most) {
            *numbers[i].slot = number;
            return true;
        }
        fprintf(stderr, "simcuda: %s: %s = '%s' is not a count between %llu and %llu\n", source,
                key, value, (unsigned long long)numbers[i].least,
                (unsigned long long)numbers[i].most);
        return false;
    }
    fprintf(stderr, "simcuda: %s: there is no setting '%s' = '%s'; include/simcuda.h lists them\n",
            source, key, value);
    return false;
}

static char *trim(char *text) {
    while (isspace((unsigned char)*text)) {
        text++;
    }
    size_t length = strlen(text);
    while (length > 0 && isspace((unsigned char)text[length - 1])) {
        text[--length] = '\0';
    }
    return text;
}

static bool config_read_file(struct config *config, const char *path) {
    FILE *file = fopen(path, "re");
    if (file == NULL) {
        fprintf(stderr, "simcuda: cannot read the settings in '%s': %s\n", path, strerror(errno));
        return false;
    }
    char line[512];
    bool good = true;
    while (good && fgets(line, sizeof line, file) != NULL) {
        char *text = trim(line);
        if (*text == '\0' || *text == '#') {
            continue;
        }
        char *equals = strchr(text, '=');
        if (equals == NULL) {
            fprintf(stderr, "simcuda: %s: '%s' is not 'key = value'\n", path, text);
            good = false;
            break;
        }
        *equals = '\0';
        char *key = trim(text);
        for (char *c = key; *c != '\0'; c++) {
            *c = (char)toupper((unsigned char)*c);
        }
        good = config_set(config, key, trim(equals + 1), path);
    }
    fclose(file);
    return good;
}

bool config_read(struct config *config) {
    memset(config, 0, sizeof *config);
    config->devices = 1;
    config->memory_bytes = 1ULL << 30;
    config->granularity_bytes = 1 << 21;
    config->timeslice_ns = 2000000;
    config->compute_thousandths = 1000;
    memcpy(config->name, "Simulated GPU", sizeof "Simulated GPU");
    const char *path = getenv("SIMCUDA_CONFIG");
    if (path != NULL && !config_read_file(config, path)) {
        return false;
    }
    for (char **variable = environ; *variable != NULL; variable++) {
        if (strncmp(*variable, "SIMCUDA_", 8) != 0) {
            continue;
        }
        const char *equals = strchr(*variable, '=');
        char key[64];
        size_t length = equals == NULL ? sizeof key : (size_t)(equals - *variable) - 8;
        if (length >= sizeof key) {
            continue;
        }
        memcpy(key, *variable + 8, length);
        key[length] = '\0';
        bool known = false;
        for (size_t i = 0; i < sizeof elsewhere / sizeof *elsewhere; i++) {
            known = known || strcmp(key, elsewhere[i]) == 0;
        }
        if (!known && !config_set(config, key, equals + 1, "the environment")) {
            return false;
        }
    }
    if ((config->granularity_bytes & (config->granularity_bytes - 1)) != 0) {
        fprintf(stderr, "simcuda: GRANULARITY = '%llu' is no power of two\n",
                (unsigned long long)config->granularity_bytes);
        return false;
    }
    return true;
}

const char *config_state_folder(void) {
    static _Thread_local char folder[PATH_MAX];
    const char *named = getenv("SIMCUDA_STATE");
    if (named != NULL) {
        return named;
    }
    snprintf(folder, sizeof folder, "/dev/shm/simcuda-%u", (unsigned)getuid());
    return folder;
}
