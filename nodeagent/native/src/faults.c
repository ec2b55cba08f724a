/* The fault handler: a read that no gate foresaw gets right bytes, or the process dies.
 *
 * A fault at an address of a watched arena fetches the extent privately and returns, so that the
 * instruction runs again. Every other fault, and one that cannot be served, goes to the handler
 * that was there before, as if this one did not exist.
 *
 * Invariant: finding out whose fault it is takes no lock, so a fault inside the library cannot
 * deadlock in it. Serving one takes the client's lock, which a thread that touches arena memory
 * never holds (an asynchronous signal handler must therefore not read weights).
 */
#include "client.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <ucontext.h>
#include <unistd.h>

#define MOST_RANGES 128U

struct range {
    uintptr_t base;
    uintptr_t end; /* 0: unused; written last, read first */
    tierline_client *client;
    uint32_t arena;
};

static struct range ranges[MOST_RANGES];
static struct tl_lock ranges_lock; /* writers only */

/* Whoever installs a handler after us may chain to the one of ours that it found. So each time we
 * go on top again it is with another function, which remembers another predecessor: the chain stays
 * a chain. When all are used up, whoever is on top is trusted to chain. */
#define LEVELS 3U
struct level {
    void (*handler)(int number, siginfo_t *info, void *context);
    struct sigaction before;
};
static struct level levels[LEVELS];
static size_t levels_used;

int tl_faults_watch(tierline_client *client, uint32_t arena) {
    const struct tl_arena *watched = &client->arenas[arena];
    int code = tl_fail(TIERLINE_E_NO_MEMORY, "more than %u arenas in one process", MOST_RANGES);
    tl_lock_acquire(&ranges_lock);
    for (size_t i = 0; i < MOST_RANGES; i++) {
        struct range *range = &ranges[i];
        if (range->end == 0) {
            __atomic_store_n(&range->client, client, __ATOMIC_RELAXED);
            __atomic_store_n(&range->arena, arena, __ATOMIC_RELAXED);
            __atomic_store_n(&range->base, (uintptr_t)watched->base, __ATOMIC_RELAXED);
            __atomic_store_n(&range->end,
                             (uintptr_t)tl_extent_address(watched, watched->extent_count),
                             __ATOMIC_RELEASE);
            code = 0;
            break;
        }
    }
    tl_lock_release(&ranges_lock);
    return code;
}

void tl_faults_forget(const tierline_client *client, uint32_t arena) {
    tl_lock_acquire(&ranges_lock);
    for (size_t i = 0; i < MOST_RANGES; i++) {
        if (ranges[i].client == client && ranges[i].arena == arena) {
            __atomic_store_n(&ranges[i].end, 0, __ATOMIC_RELEASE);
        }
    }
    tl_lock_release(&ranges_lock);
}

static const struct range *find_range(uintptr_t address) {
    for (size_t i = 0; i < MOST_RANGES; i++) {
        uintptr_t end = __atomic_load_n(&ranges[i].end, __ATOMIC_ACQUIRE);
        if (address < end && address >= __atomic_load_n(&ranges[i].base, __ATOMIC_RELAXED)) {
            return &ranges[i];
        }
    }
    return NULL;
}

static bool is_write(const ucontext_t *context) {
#if defined(__x86_64__)
    return (context->uc_mcontext.gregs[REG_ERR] & 2) != 0;
#elif defined(__aarch64__)
    /* The syndrome register lies among the context's records; bit 6 says "write". */
    const uint8_t *at = (const uint8_t *)context->uc_mcontext.__reserved;
    const uint8_t *end = at + sizeof context->uc_mcontext.__reserved;
    while (at + 16 <= end) {
        uint32_t magic;
        uint32_t size;
        memcpy(&magic, at, sizeof magic);
        memcpy(&size, at + 4, sizeof size);
        if (magic == 0x45535201U) {
            uint64_t syndrome;
            memcpy(&syndrome, at + 8, sizeof syndrome);
            return (syndrome & (1U << 6)) != 0;
        }
        if (magic == 0 || size == 0) {
            break;
        }
        at += size;
    }
    return false;
#else
#error "tell reads from writes on this architecture"
#endif
}

static void print_sentence(const char *cause) {
    static const char lead[] = "tierline: a weight cannot be read: ";
    char line[TL_SENTENCE_BYTES + sizeof lead];
    size_t used = sizeof lead - 1;
    size_t length = strnlen(cause, TL_SENTENCE_BYTES - 1);
    memcpy(line, lead, used);
    memcpy(line + used, cause, length);
    line[used + length] = '\n';
    if (write(STDERR_FILENO, line, used + length + 1) < 0) {
        return; /* nobody listens; the previous handler comes next anyway */
    }
}

/* 0 if the instruction can run again. */
static int serve(const struct range *range, uintptr_t address, bool writing) {
    tierline_client *client = range->client;
    if (client->dropped) {
        return tl_fail(TIERLINE_E_FORKED, "this process was forked from the task; load the model "
                                          "in the child, or read it in the parent");
    }
    tl_lock_acquire(&client->lock);
    const struct tl_arena *arena = &client->arenas[range->arena];
    int code;
    if (arena->state != TL_ARENA_SEALED) {
        code = tl_fail(TIERLINE_E_STATE, "arena %u is not sealed yet", range->arena);
    } else {
        uint64_t offset = address - (uintptr_t)arena->base;
        code = tl_fetch_private(client, range->arena, (uint32_t)(offset / arena->extent_bytes),
                                writing);
    }
    tl_lock_release(&client->lock);
    return code;
}

/* Hands the signal to whoever had it before; if that is nobody, the default action takes the
 * process down at the faulting instruction. */
static void chain(const struct sigaction *before, int number, siginfo_t *info, void *context) {
    if (before->sa_handler == SIG_DFL || before->sa_handler == SIG_IGN) {
        struct sigaction fallback = {.sa_handler = SIG_DFL};
        sigaction(number, &fallback, NULL);
        if (info->si_code <= 0) { /* sent by somebody: it would not come again by itself */
            raise(number);
        }
    } else if ((before->sa_flags & SA_SIGINFO) != 0) {
        before->sa_sigaction(number, info, context);
    } else {
        before->sa_handler(number);
    }
}

static void handle(const struct level *level, int number, siginfo_t *info, void *context) {
    int kept = errno;
    if (info->si_code > 0) {
        uintptr_t address = (uintptr_t)info->si_addr;
        const struct range *range = find_range(address);
        if (range != NULL) {
            if (serve(range, address, is_write(context)) == 0) {
                errno = kept;
                return;
            }
            print_sentence(tierline_last_error());
        }
    }
    chain(&level->before, number, info, context);
    errno = kept;
}

static void handle_first(int number, siginfo_t *info, void *context) {
    handle(&levels[0], number, info, context);
}

static void handle_second(int number, siginfo_t *info, void *context) {
    handle(&levels[1], number, info, context);
}

static void handle_third(int number, siginfo_t *info, void *context) {
    handle(&levels[2], number, info, context);
}

static struct level levels[LEVELS] = {
    {.handler = handle_first}, {.handler = handle_second}, {.handler = handle_third}};

static bool is_ours(const struct sigaction *action) {
    for (size_t i = 0; i < LEVELS; i++) {
        if ((action->sa_flags & SA_SIGINFO) != 0 && action->sa_sigaction == levels[i].handler) {
            return true;
        }
    }
    return false;
}

int tl_faults_install(void) {
    struct sigaction current;
    if (sigaction(SIGSEGV, NULL, &current) != 0) {
        return tl_fail_errno(TIERLINE_E_SYSTEM, "reading the handler of SIGSEGV");
    }
    if (is_ours(&current)) {
        return 0;
    }
    int failed = 0;
    tl_lock_acquire(&ranges_lock);
    if (levels_used < LEVELS) {
        struct level *level = &levels[levels_used++];
        level->before = current;
        /* SA_ONSTACK: a previous handler may be there for stack overflows. */
        struct sigaction ours = {.sa_sigaction = level->handler,
                                 .sa_flags = SA_SIGINFO | SA_ONSTACK};
        sigemptyset(&ours.sa_mask);
        failed = sigaction(SIGSEGV, &ours, NULL);
    }
    tl_lock_release(&ranges_lock);
    return failed != 0 ? tl_fail_errno(TIERLINE_E_SYSTEM, "installing a handler of SIGSEGV") : 0;
}
