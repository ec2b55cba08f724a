/* See lateness.h. */
#include "lateness.h"

#include <pthread.h>
#include <stdlib.h>

/* Nobody can wait for these bytes but by a call, so this time never passes. */
enum { LATE_STAGED_NS = 2000000000 };
/* Others may wait for a word in memory, which is no call: these times do pass. */
enum { LATE_NS = 300000, VERY_LATE_NS = 4000000 };

static pthread_once_t asked = PTHREAD_ONCE_INIT;
static uint64_t state; /* 0: nothing is late */

static void ask(void) {
    const char *value = getenv("SIMCUDA_LATE");
    state = value == NULL ? 0 : strtoull(value, NULL, 10);
}

/* xorshift64* */
static uint64_t draw(void) {
    state ^= state >> 12;
    state ^= state << 25;
    state ^= state >> 27;
    return (state * 0x2545f4914f6cdd1dU) >> 32;
}

uint64_t lateness_next(const struct work *work) {
    pthread_once(&asked, ask);
    if (state == 0) {
        return 0;
    }
    uint64_t drawn = draw();
    if (work->kind == WORK_COPY && work->copy.staging != NULL) {
        return LATE_STAGED_NS;
    }
    return drawn % 32 == 0 ? VERY_LATE_NS : drawn % 4 == 0 ? drawn / 4 % LATE_NS : 0;
}
