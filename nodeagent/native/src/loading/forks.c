/* See forks.h. */
#include "loading/forks.h"

#include "arena/host_memory.h"
#include "loading/fetch.h"
#include "wire/threads.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#define MOST_CHILDREN 64U
#define PAGE_BYTES 4096U
#define LOOK_NS 50000000U

/* Of an extent. */
enum word { ABSENT, WANTED, THERE, FAILED };

/* A process that holds one of these mutexes lives: the kernel lets go of it when its thread ends or
 * execs. */
struct tl_forks_page {
    uint32_t bell;    /* counts what was asked for */
    uint32_t ready;   /* the thread that answers has `parent` */
    uint32_t crowded; /* more children than there are places: some may live, for ever */
    pthread_mutex_t parent;
    pthread_mutex_t children[MOST_CHILDREN];
};
_Static_assert(sizeof(struct tl_forks_page) <= PAGE_BYTES, "it is a page");

/* ---- what is shared: a word for each extent, and then their bytes */

static uint64_t words_bytes(const struct tl_arena *arena) {
    uint64_t bytes = arena->extent_count * sizeof(uint32_t);
    return (bytes + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
}

static uint32_t *word_of(const struct tl_arena *arena, uint32_t extent) {
    return (uint32_t *)(void *)arena->legacy + extent;
}

static uint8_t *bytes_of(const struct tl_arena *arena, uint32_t extent) {
    return arena->legacy + words_bytes(arena) + extent * arena->extent_bytes;
}

static uint32_t look(const uint32_t *word) {
    return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}

static void say(uint32_t *word, uint32_t value) {
    __atomic_store_n(word, value, __ATOMIC_RELEASE);
    tl_futex_wake_all(word, true);
}

static void ring(struct tl_forks_page *page) {
    __atomic_add_fetch(&page->bell, 1, __ATOMIC_RELEASE);
    tl_futex_wake_all(&page->bell, true);
}

static void *shared_memory(uint64_t bytes) {
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

/* ---- which processes live */

static bool init_mutex(pthread_mutex_t *mutex) {
    pthread_mutexattr_t kind;
    if (pthread_mutexattr_init(&kind) != 0) {
        return false;
    }
    bool made = pthread_mutexattr_setpshared(&kind, PTHREAD_PROCESS_SHARED) == 0 &&
                pthread_mutexattr_setrobust(&kind, PTHREAD_MUTEX_ROBUST) == 0 &&
                pthread_mutex_init(mutex, &kind) == 0;
    pthread_mutexattr_destroy(&kind);
    return made;
}

/* Takes it if nobody that lives has it. */
static bool take(pthread_mutex_t *mutex) {
    int code = pthread_mutex_trylock(mutex);
    if (code == EOWNERDEAD) {
        code = pthread_mutex_consistent(mutex);
    }
    return code == 0;
}

static bool parent_lives(struct tl_forks_page *page) {
    if (take(&page->parent)) {
        pthread_mutex_unlock(&page->parent);
        return false;
    }
    return true;
}

static bool children_live(struct tl_forks_page *page) {
    bool any = look(&page->crowded) != 0;
    for (size_t i = 0; i < MOST_CHILDREN && !any; i++) {
        any = !take(&page->children[i]);
        if (!any) {
            pthread_mutex_unlock(&page->children[i]);
        }
    }
    return any;
}

static void live(struct tl_forks_page *page) {
    for (size_t i = 0; i < MOST_CHILDREN; i++) {
        if (take(&page->children[i])) {
            return; /* to the end of this thread */
        }
    }
    __atomic_store_n(&page->crowded, 1, __ATOMIC_RELEASE);
}

/* ---- the parent's thread */

static bool is_shared(const struct tl_arena *arena) {
    return arena->state == TL_ARENA_SEALED && arena->legacy != NULL;
}

/* With the lock held, which it releases. */
static int bring(tierline_client *client, uint32_t index, uint32_t extent) {
    struct tl_arena *arena = &client->arenas[index];
    arena->users++;
    int code = tl_fetch_bytes(client, index, extent, tl_copy_bytes, bytes_of(arena, extent));
    arena->users--;
    if (code == 0 || look(word_of(arena, extent)) != THERE) {
        say(word_of(arena, extent), code == 0 ? THERE : FAILED);
    }
    tl_event_announce(&client->changed);
    return code;
}

static void answer_all(tierline_client *client) {
    for (uint32_t a = 0; a < TIERLINE_MAX_ARENAS; a++) {
        struct tl_arena *arena = &client->arenas[a];
        for (uint32_t e = 0; is_shared(arena) && e < arena->extent_count; e++) {
            if (look(word_of(arena, e)) == WANTED) {
                (void)bring(client, a, e); /* the child hears it, and says why */
            }
        }
    }
}

static void *answer(void *context) {
    tierline_client *client = context;
    struct tl_forks_page *page = client->forks.page;
    bool ours = take(&page->parent);
    say(&page->ready, 1);
    tl_lock_acquire(&client->lock);
    while (client->forks.running) {
        uint32_t heard = look(&page->bell);
        answer_all(client);
        if (look(&page->bell) == heard && client->forks.running) {
            tl_lock_release(&client->lock);
            tl_futex_wait(&page->bell, heard, TL_FOREVER, true);
            tl_lock_acquire(&client->lock);
        }
    }
    tl_lock_release(&client->lock);
    if (ours) {
        pthread_mutex_unlock(&page->parent);
    }
    return NULL;
}

static bool start(tierline_client *client) {
    struct tl_forks *forks = &client->forks;
    if (forks->running) {
        return true;
    }
    struct tl_forks_page *page = shared_memory(PAGE_BYTES);
    bool made = page != NULL && init_mutex(&page->parent);
    for (size_t i = 0; i < MOST_CHILDREN && made; i++) {
        made = init_mutex(&page->children[i]);
    }
    forks->page = page;
    forks->running = made;
    made = made && tl_thread_start(&forks->thread, answer, client, "answers forked children") == 0;
    forks->running = made;
    if (!made) {
        forks->page = NULL;
        if (page != NULL) {
            munmap(page, PAGE_BYTES);
        }
        return false;
    }
    while (look(&page->ready) == 0) {
        tl_futex_wait(&page->ready, 0, TL_FOREVER, true);
    }
    return true;
}

bool tl_forks_complete(tierline_client *client, uint32_t index) {
    struct tl_arena *arena = &client->arenas[index];
    if (!is_shared(arena) || client->dropped || !children_live(client->forks.page)) {
        return false;
    }
    bool waited = false;
    int code = 0;
    arena->users++;
    for (uint32_t e = 0; e < arena->extent_count && code == 0; e++) {
        if (look(word_of(arena, e)) != THERE) {
            code = bring(client, index, e);
            waited = true;
        }
    }
    arena->users--;
    tl_event_announce(&client->changed);
    return waited && code == 0;
}

void tl_forks_stop(tierline_client *client) {
    struct tl_forks *forks = &client->forks;
    if (!forks->running || client->dropped) {
        return;
    }
    tl_lock_acquire(&client->lock);
    forks->running = false;
    ring(forks->page);
    tl_lock_release(&client->lock);
    pthread_join(forks->thread, NULL);
    munmap(forks->page, PAGE_BYTES);
    forks->page = NULL;
}

/* ---- around a fork */

static void share(tierline_client *client) {
    for (uint32_t a = 0; a < TIERLINE_MAX_ARENAS; a++) {
        struct tl_arena *arena = &client->arenas[a];
        if (arena->state == TL_ARENA_SEALED && arena->legacy == NULL && start(client)) {
            arena->legacy_bytes = words_bytes(arena) + tl_arena_bytes(arena);
            arena->legacy = shared_memory(arena->legacy_bytes);
        }
    }
}

void tl_forks_begin(tierline_client *client) {
    client->forks.held = tl_lock_acquire_within(&client->lock, TL_FORK_PATIENCE_NS);
    if (client->forks.held && !client->dropped && client->device == TIERLINE_DEVICE_CPU) {
        share(client);
    }
}

void tl_forks_in_parent(tierline_client *client) {
    if (client->forks.held) {
        client->forks.held = false;
        tl_lock_release(&client->lock);
    }
}

void tl_forks_in_child(tierline_client *client) {
    bool first = !client->dropped;
    client->lock.word = 0;
    client->dropped = true;
    for (uint32_t a = 0; a < TIERLINE_MAX_ARENAS; a++) {
        struct tl_arena *arena = &client->arenas[a];
        if (!client->forks.held && arena->state != TL_ARENA_NONE) {
            arena->legacy = NULL; /* what lies where is not known for sure */
            memset(arena->states, TL_EXTENT_CLOSED, arena->extent_count);
        }
        if (first && arena->state != TL_ARENA_NONE) {
            tl_arena_abandon(arena);
        }
        if (arena->legacy != NULL) {
            (void)mprotect(arena->legacy + words_bytes(arena), tl_arena_bytes(arena), PROT_READ);
        }
    }
    client->forks.held = false;
    if (client->forks.page != NULL) {
        live(client->forks.page);
    }
}

/* ---- in a child */

/* Returns when the extent is in shared memory. */
static int await(const tierline_client *client, const struct tl_arena *arena, uint32_t extent) {
    if (arena->legacy == NULL) {
        return tl_fail(TIERLINE_E_FORKED,
                       "this process was forked when its parent's weights could not be shared "
                       "with it; load the model in the child");
    }
    struct tl_forks_page *page = client->forks.page;
    uint32_t *word = word_of(arena, extent);
    uint32_t seen = look(word);
    bool asked = false;
    while (seen != THERE) {
        if (seen == FAILED && asked) {
            return tl_fail(TIERLINE_E_FORKED, "the process that this one was forked from could "
                                              "not read it from the agent");
        }
        if (seen != WANTED) {
            __atomic_compare_exchange_n(word, &seen, WANTED, false, __ATOMIC_ACQ_REL,
                                        __ATOMIC_ACQUIRE);
            ring(page);
        }
        asked = true;
        tl_futex_wait(word, WANTED, LOOK_NS, true);
        seen = look(word);
        if (seen != THERE && !parent_lives(page) && look(word) != THERE) {
            return tl_fail(TIERLINE_E_FORKED,
                           "the process that this one was forked from is gone, and took weights "
                           "along that this one had not read; end it by exit(), or later");
        }
    }
    return 0;
}

/* All with the lock held. */
static int show(struct tl_arena *arena, uint32_t extent) {
    /* Of a shared mapping a size of 0 makes another one. */
    if (mremap(bytes_of(arena, extent), 0, arena->extent_bytes, MREMAP_MAYMOVE | MREMAP_FIXED,
               tl_extent_address(arena, extent)) == MAP_FAILED) {
        return tl_fail_errno(TIERLINE_E_SYSTEM, "mapping extent %u in a forked child", extent);
    }
    arena->states[extent] = TL_EXTENT_RESIDENT;
    return 0;
}

static int make_writable(struct tl_arena *arena, uint32_t extent) {
    uint64_t size = arena->extent_bytes;
    if (arena->states[extent] == TL_EXTENT_PRIVATE) {
        if (mprotect(tl_extent_address(arena, extent), size, PROT_READ | PROT_WRITE) != 0) {
            return tl_fail_errno(TIERLINE_E_SYSTEM, "making extent %u writable", extent);
        }
        arena->states[extent] = TL_EXTENT_KEPT;
        return 0;
    }
    uint8_t *copy = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (copy == MAP_FAILED) {
        return tl_fail_errno(TIERLINE_E_NO_MEMORY, "writing to extent %u in a forked child",
                             extent);
    }
    memcpy(copy, bytes_of(arena, extent), size);
    int code = tl_host_replace(arena, extent, copy, true);
    if (code != 0) {
        munmap(copy, size);
    }
    return code;
}

int tl_forks_read(tierline_client *client, uint32_t index, uint32_t extent, bool writing) {
    struct tl_arena *arena = &client->arenas[index];
    tl_lock_acquire(&client->lock);
    bool mine = tl_extent_is_private(arena, extent);
    tl_lock_release(&client->lock);
    int code = mine ? 0 : await(client, arena, extent);
    if (code != 0) {
        return code;
    }
    tl_lock_acquire(&client->lock);
    if (writing && arena->states[extent] != TL_EXTENT_KEPT) {
        code = make_writable(arena, extent);
    } else if (arena->states[extent] == TL_EXTENT_CLOSED) {
        code = show(arena, extent);
    }
    tl_lock_release(&client->lock);
    return code;
}
