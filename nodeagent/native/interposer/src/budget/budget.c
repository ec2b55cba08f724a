/* See budget.h. One atomic counter: two threads that ask at once cannot both get the last bytes. */
#include "budget/budget.h"

#include <ctype.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "driver/abi.h"
#include "driver/standard_error.h"

static _Atomic uint64_t limit; /* 0: none */
static _Atomic uint64_t charged;
static atomic_bool read_already;

bool budget_parse(const char *text, uint64_t *bytes) {
    static const struct {
        const char *suffix;
        unsigned int shift;
    } suffixes[] = {{"", 0}, {"Ki", 10}, {"Mi", 20}, {"Gi", 30}};
    char *end = NULL;
    errno = 0;
    unsigned long long number = strtoull(text, &end, 10);
    if (errno != 0 || !isdigit((unsigned char)text[0])) {
        return false;
    }
    for (size_t i = 0; i < sizeof suffixes / sizeof *suffixes; i++) {
        if (strcmp(end, suffixes[i].suffix) == 0 && number > 0 &&
            number <= UINT64_MAX >> suffixes[i].shift) {
            *bytes = (uint64_t)number << suffixes[i].shift;
            return true;
        }
    }
    return false;
}

bool budget_read_environment(void) {
    atomic_store(&read_already, true);
    const char *text = getenv("TIERLINE_BUDGET");
    uint64_t bytes = 0;
    if (text != NULL && !budget_parse(text, &bytes)) {
        standard_error_say(
            "tierline: cannot read the memory budget TIERLINE_BUDGET='%s': it is a number of "
            "bytes above 0 with Ki, Mi, Gi or nothing after it; CUDA stays off\n",
            text);
        return false;
    }
    atomic_store(&limit, bytes);
    return true;
}

void budget_read_once(void) {
    if (!atomic_load(&read_already)) {
        (void)budget_read_environment();
    }
}

bool budget_configured(void) {
    return budget_bytes() != 0;
}

uint64_t budget_bytes(void) {
    return atomic_load_explicit(&limit, memory_order_relaxed);
}

uint64_t budget_charged(void) {
    return atomic_load_explicit(&charged, memory_order_relaxed);
}

int budget_reserve(uint64_t bytes) {
    uint64_t most = budget_bytes();
    uint64_t before = atomic_load(&charged);
    if (bytes == 0) {
        return ABI_SUCCESS; /* also when imported handles have overdrawn it */
    }
    do {
        if (most != 0 && (before > most || bytes > most - before)) {
            return ABI_OUT_OF_MEMORY;
        }
    } while (!atomic_compare_exchange_weak(&charged, &before, before + bytes));
    return ABI_SUCCESS;
}

void budget_add(uint64_t bytes) {
    atomic_fetch_add(&charged, bytes);
}

void budget_release(uint64_t bytes) {
    atomic_fetch_sub(&charged, bytes);
}

void budget_forget(void) {
    atomic_store(&charged, 0);
    atomic_store(&limit, 0);
    atomic_store(&read_already, false);
}

void budget_show_info(size_t *free_bytes, size_t *total_bytes) {
    uint64_t most = budget_bytes();
    if (most == 0) {
        return;
    }
    uint64_t used = budget_charged();
    uint64_t left = used < most ? most - used : 0;
    if (free_bytes != NULL && *free_bytes > left) {
        *free_bytes = left;
    }
    budget_show_total(total_bytes);
}

void budget_show_total(size_t *total_bytes) {
    uint64_t most = budget_bytes();
    if (most != 0 && total_bytes != NULL && *total_bytes > most) {
        *total_bytes = most;
    }
}
