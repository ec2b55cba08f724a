/* Words, the lock and the event, with threads and with another process. */
#include "expect.h"
#include "tierline/tierline.h"
#include "wire/words.h"

#include <pthread.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define ROUNDS 2000U
#define THREADS 4

static void a_reached_word_returns_at_once(void) {
    uint32_t word = 5;
    EXPECT(tierline_word_wait(&word, 5, 0) == 0);
    EXPECT(tierline_word_wait(&word, 0, 0) == 0);
    EXPECT(tierline_word_wait(&word, 6, 0) == TIERLINE_E_TIMEOUT);
}

static void a_wait_ends_after_its_time(void) {
    uint32_t word = 0;
    uint64_t begin_ns = tl_now_ns();
    EXPECT(tierline_word_wait(&word, 1, 20000000) == TIERLINE_E_TIMEOUT);
    EXPECT(tl_now_ns() - begin_ns >= 20000000);
}

/* The protocol of a ring: one side publishes, the other consumes, each waits
 * for the other. */
struct pair {
    uint32_t published;
    uint8_t apart[60];
    uint32_t consumed;
};

static void consume(struct pair *pair) {
    for (uint32_t i = 1; i <= ROUNDS; i++) {
        EXPECT(tierline_word_wait(&pair->published, i, UINT64_MAX) == 0);
        tierline_word_publish(&pair->consumed, i);
    }
}

static void produce(struct pair *pair) {
    for (uint32_t i = 1; i <= ROUNDS; i++) {
        tierline_word_publish(&pair->published, i);
        EXPECT(tierline_word_wait(&pair->consumed, i > 2 ? i - 2 : 0, UINT64_MAX) == 0);
    }
    EXPECT(tierline_word_wait(&pair->consumed, ROUNDS, UINT64_MAX) == 0);
}

static void *consume_in_thread(void *pair) {
    consume(pair);
    return NULL;
}

static void no_publish_is_missed_between_threads(void) {
    static struct pair pair;
    pthread_t thread;
    EXPECT(pthread_create(&thread, NULL, consume_in_thread, &pair) == 0);
    produce(&pair);
    EXPECT(pthread_join(thread, NULL) == 0);
}

static void no_publish_is_missed_between_processes(void) {
    struct pair *pair = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    EXPECT(pair != MAP_FAILED);
    pid_t child = fork();
    EXPECT(child >= 0);
    if (child == 0) {
        consume(pair);
        _exit(0);
    }
    produce(pair);
    int status;
    EXPECT(waitpid(child, &status, 0) == child && status == 0);
    munmap(pair, 4096);
}

static struct tl_lock lock;
static struct tl_event event;
static unsigned counter;
static int turn;

static void *count_up(void *unused) {
    for (unsigned i = 0; i < ROUNDS; i++) {
        tl_lock_acquire(&lock);
        counter++;
        tl_lock_release(&lock);
    }
    return unused;
}

static void the_lock_excludes(void) {
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++) {
        EXPECT(pthread_create(&threads[i], NULL, count_up, NULL) == 0);
    }
    for (int i = 0; i < THREADS; i++) {
        EXPECT(pthread_join(threads[i], NULL) == 0);
    }
    EXPECT(counter == THREADS * ROUNDS);
}

static void *take_turns(void *index) {
    int mine = *(int *)index;
    for (unsigned i = 0; i < ROUNDS / 10; i++) {
        tl_lock_acquire(&lock);
        while (turn != mine) {
            tl_event_wait(&event, &lock, TL_FOREVER);
        }
        turn = (turn + 1) % THREADS;
        tl_event_announce(&event);
        tl_lock_release(&lock);
    }
    return NULL;
}

static void no_announcement_is_missed(void) {
    pthread_t threads[THREADS];
    int indices[THREADS];
    for (int i = 0; i < THREADS; i++) {
        indices[i] = i;
        EXPECT(pthread_create(&threads[i], NULL, take_turns, &indices[i]) == 0);
    }
    for (int i = 0; i < THREADS; i++) {
        EXPECT(pthread_join(threads[i], NULL) == 0);
    }
}

int main(void) {
    a_reached_word_returns_at_once();
    a_wait_ends_after_its_time();
    no_publish_is_missed_between_threads();
    no_publish_is_missed_between_processes();
    the_lock_excludes();
    no_announcement_is_missed();
    return 0;
}
