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
#include "loading/faults.h"

#include "arena/addresses.h"
#include "driver/standard_error.h"
#include "link/state.h"
#include "loading/fetch.h"
#include "loading/forks.h"
#include "loading/kernel_mask.h"
#include "loading/origins.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <ucontext.h>

/* Preloaded, this library has the program's sigaction and signal (signals.c): what a program does
 * with SIGSEGV from then on changes which handler comes after ours, and what it reads back is its
 * own.
 *
 * Where it was loaded later, or a program asks the kernel itself, code that installs a handler
 * after us may chain to the one of ours that it found. So each time we go on top again it is with
 * another function, which remembers another predecessor: the chain stays a chain. When all are used
 * up, the handler on top is trusted to chain. */
#define LEVELS 3U
struct level {
    void (*handler)(int number, siginfo_t *info, void *context);
    struct sigaction before;
};
static struct level levels[LEVELS];
static size_t levels_used;
static struct tl_lock levels_lock;
_Atomic bool tl_faults_installed;

/* The C library's own, of a name that programs do not call: signals.c has the other one. */
extern int __sigaction(int number, const struct sigaction *action, struct sigaction *before);
#pragma weak __sigaction

static int act(int number, const struct sigaction *action, struct sigaction *before) {
    return __sigaction != NULL ? __sigaction(number, action, before)
                               : sigaction(number, action, before);
}

/* With all signals held back: a handler may ask for another one. */
static void enter(sigset_t *kept) {
    tl_kernel_mask_all(kept);
    tl_lock_acquire(&levels_lock);
}

static void leave(const sigset_t *kept) {
    tl_lock_release(&levels_lock);
    tl_kernel_mask(SIG_SETMASK, kept, NULL);
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

void tl_faults_say(const char *cause) {
    static const char lead[] = "tierline: a weight cannot be read: ";
    char line[TL_SENTENCE_BYTES + sizeof lead];
    size_t used = sizeof lead - 1;
    size_t length = strnlen(cause, TL_SENTENCE_BYTES - 1);
    memcpy(line, lead, used);
    memcpy(line + used, cause, length);
    line[used + length] = '\n';
    standard_error_write(line, used + length + 1);
}

/* 0 if the instruction can run again. */
static int serve(const struct tl_addresses *range, uintptr_t address, bool writing) {
    tierline_client *client = range->client;
    const struct tl_arena *arena = &client->arenas[range->arena];
    uint64_t offset = address - (uintptr_t)arena->base;
    uint32_t extent = (uint32_t)(offset / arena->extent_bytes);
    if (client->dropped) {
        return tl_forks_read(client, range->arena, extent, writing);
    }
    tl_lock_acquire(&client->lock);
    int code;
    if (arena->state != TL_ARENA_SEALED) {
        code = tl_fail(TIERLINE_E_STATE, "arena %u is not sealed yet", range->arena);
    } else {
        code = tl_fetch_private(client, range->arena, extent, writing);
    }
    tl_lock_release(&client->lock);
    return code;
}

/* Hands the signal to the handler that had it before, as the kernel would; if there is none, the
 * default action takes the process down at the faulting instruction. */
static void chain(struct sigaction *slot, int number, siginfo_t *info, void *context) {
    sigset_t kept;
    enter(&kept);
    struct sigaction before = *slot;
    if (((unsigned)before.sa_flags & SA_RESETHAND) != 0) {
        *slot = (struct sigaction){.sa_handler = SIG_DFL};
    }
    leave(&kept);
    if (before.sa_handler == SIG_DFL || before.sa_handler == SIG_IGN) {
        struct sigaction fallback = {.sa_handler = SIG_DFL};
        act(number, &fallback, NULL);
        if (info->si_code <= 0) { /* sent by somebody: it would not come again by itself */
            raise(number);
        }
        return;
    }
    sigset_t masked = before.sa_mask;
    if ((before.sa_flags & SA_NODEFER) != 0) {
        sigset_t this_one;
        sigemptyset(&this_one);
        sigaddset(&this_one, number);
        tl_kernel_mask(SIG_UNBLOCK, &this_one, NULL);
    }
    tl_kernel_mask(SIG_BLOCK, &masked, NULL);
    if ((before.sa_flags & SA_SIGINFO) != 0) {
        before.sa_sigaction(number, info, context);
    } else {
        before.sa_handler(number);
    }
    tl_kernel_mask(SIG_SETMASK, &kept, NULL);
}

static void handle(struct level *level, int number, siginfo_t *info, void *context) {
    int kept = errno;
    if (info->si_code > 0) {
        uintptr_t address = (uintptr_t)info->si_addr;
        bool writing = is_write(context);
        const struct tl_addresses *range = tl_addresses_find(address);
        int code = 0;
        bool ours = range != NULL || tl_origins_touch(address, writing, &code);
        code = range != NULL ? serve(range, address, writing) : code;
        if (ours && code == 0) {
            errno = kept;
            return;
        }
        if (ours) {
            tl_faults_say(tierline_last_error());
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
    if (act(SIGSEGV, NULL, &current) != 0) {
        return tl_fail_errno(TIERLINE_E_SYSTEM, "reading the handler of SIGSEGV");
    }
    if (is_ours(&current)) {
        return 0;
    }
    int failed = 0;
    sigset_t kept;
    enter(&kept);
    if (levels_used < LEVELS) {
        struct level *level = &levels[levels_used++];
        level->before = current;
        /* SA_ONSTACK: a previous handler may be there for stack overflows. */
        struct sigaction ours = {.sa_sigaction = level->handler,
                                 .sa_flags = SA_SIGINFO | SA_ONSTACK};
        sigemptyset(&ours.sa_mask);
        failed = act(SIGSEGV, &ours, NULL);
    }
    leave(&kept);
    tl_faults_installed = true;
    return failed != 0 ? tl_fail_errno(TIERLINE_E_SYSTEM, "installing a handler of SIGSEGV") : 0;
}

bool tl_faults_exchange(const struct sigaction *action, struct sigaction *before) {
    struct sigaction current;
    if (act(SIGSEGV, NULL, &current) != 0 || !is_ours(&current)) {
        return false;
    }
    struct sigaction wanted = {0};
    if (action != NULL) {
        wanted = *action;
    }
    sigset_t kept;
    enter(&kept);
    struct sigaction *last = &levels[levels_used - 1].before;
    struct sigaction found = *last;
    if (action != NULL) {
        *last = wanted;
    }
    leave(&kept);
    if (before != NULL) {
        *before = found;
    }
    return true;
}
