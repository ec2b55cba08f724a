/* See standing.h. */
#include "standing.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static unsigned standing;
static pthread_once_t asked = PTHREAD_ONCE_INIT;
static bool calls_wait;

void standing_begin(void) {
    pthread_mutex_lock(&lock);
    standing++;
    pthread_mutex_unlock(&lock);
}

void standing_end(void) {
    pthread_mutex_lock(&lock);
    if (--standing == 0) {
        pthread_cond_broadcast(&changed);
    }
    pthread_mutex_unlock(&lock);
}

static void ask(void) {
    const char *value = getenv("SIMCUDA_CALLS_WAIT");
    calls_wait = value != NULL && strcmp(value, "1") == 0;
}

void standing_wait(void) {
    pthread_once(&asked, ask);
    pthread_mutex_lock(&lock);
    while (calls_wait && standing > 0) {
        pthread_cond_wait(&changed, &lock);
    }
    pthread_mutex_unlock(&lock);
}
