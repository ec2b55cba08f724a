/* See spares.h. */
#include "arena/spares.h"

#include "wire/threads.h"
#include "wire/words.h"

#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#define AT_ONCE 128U
#define PATIENCE_S 5
#ifndef SYS_close_range
#define SYS_close_range 436
#endif
#ifndef CLOSE_RANGE_UNSHARE
#define CLOSE_RANGE_UNSHARE (1U << 1)
#endif

enum task { STARTING, HOLDING, UNABLE, ASKED, ENDING };

struct tl_spares {
    struct tl_lock lock;
    struct tl_event changed;
    enum task task;
    pthread_t thread;
    struct sockaddr_un caller; /* the caller that ASKED listens there */
    socklen_t caller_bytes;
    size_t count;
    struct tl_descriptor held[];
};

/* ---- between the tables */

static bool is_this_process(int end) {
    struct ucred peer;
    socklen_t bytes = sizeof peer;
    return getsockopt(end, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) == 0 && peer.pid == getpid();
}

static void limit_waits(int end) {
    struct timeval patience = {.tv_sec = PATIENCE_S};
    setsockopt(end, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    setsockopt(end, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
}

union rights {
    struct cmsghdr header;
    char bytes[CMSG_SPACE(sizeof(int) * AT_ONCE)];
};

static bool send_some(int end, const struct tl_descriptor *held, size_t count) {
    union rights control;
    memset(&control, 0, sizeof control);
    char byte = 0;
    struct iovec part = {.iov_base = &byte, .iov_len = 1};
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = &control,
                             .msg_controllen = CMSG_SPACE(sizeof(int) * count)};
    struct cmsghdr *rights = CMSG_FIRSTHDR(&message);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(sizeof(int) * count);
    for (size_t i = 0; i < count; i++) {
        memcpy(CMSG_DATA(rights) + i * sizeof(int), &held[i].number, sizeof(int));
    }
    /* The answer keeps what is under way below the limit on descriptors in flight. */
    return sendmsg(end, &message, MSG_NOSIGNAL) == 1 && recv(end, &byte, 1, 0) == 1;
}

/* Takes a copy where the descriptor is not ours any more, and closes it elsewhere. */
static bool settle(struct tl_descriptor *descriptor, int number) {
    struct tl_descriptor copy = tl_descriptor_of(number);
    bool same = copy.device == descriptor->device && copy.inode == descriptor->inode;
    if (same && !tl_descriptor_is_ours(descriptor)) {
        *descriptor = copy;
    } else {
        tl_descriptor_close(&copy);
    }
    return same;
}

static bool receive_some(int end, struct tl_descriptor *const *descriptors, size_t count) {
    union rights control;
    char byte = 0;
    struct iovec part = {.iov_base = &byte, .iov_len = 1};
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = &control,
                             .msg_controllen = sizeof control};
    if (recvmsg(end, &message, MSG_CMSG_CLOEXEC) != 1) {
        return false;
    }
    struct cmsghdr *rights = CMSG_FIRSTHDR(&message);
    if (rights == NULL || rights->cmsg_type != SCM_RIGHTS) {
        return false;
    }
    size_t received = (rights->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    bool all = received == count;
    for (size_t i = 0; i < received; i++) {
        int number;
        memcpy(&number, CMSG_DATA(rights) + i * sizeof number, sizeof number);
        if (i < count) {
            all = settle(descriptors[i], number) && all;
        } else {
            close(number);
        }
    }
    return all && send(end, &byte, 1, MSG_NOSIGNAL) == 1;
}

static size_t part_of(size_t count, size_t first) {
    return count - first < AT_ONCE ? count - first : AT_ONCE;
}

/* ---- the thread with the other table */

/* Leaves the program's table, and closes in its own what is not held. */
static bool leave_table(const struct tl_spares *spares) {
    unsigned flags = CLOSE_RANGE_UNSHARE;
    unsigned end = ~0U; /* what is held lies below, what is closed up to there */
    for (;;) {
        int highest = -1;
        for (size_t i = 0; i < spares->count; i++) {
            int number = spares->held[i].number;
            if ((unsigned)number < end && number > highest) {
                highest = number;
            }
        }
        unsigned first = (unsigned)(highest + 1);
        if (first < end && syscall(SYS_close_range, first, end - (end != ~0U), flags) != 0) {
            return false;
        }
        if (highest < 0) {
            break;
        }
        flags = 0;
        end = (unsigned)highest;
    }
    for (size_t i = 0; i < spares->count; i++) {
        if (!tl_descriptor_is_ours(&spares->held[i])) {
            return false;
        }
    }
    return true;
}

static void give(const struct tl_spares *spares) {
    int end = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (end < 0) {
        return;
    }
    limit_waits(end);
    bool going =
        connect(end, (const struct sockaddr *)&spares->caller, spares->caller_bytes) == 0 &&
        is_this_process(end);
    for (size_t first = 0; first < spares->count && going; first += AT_ONCE) {
        going = send_some(end, spares->held + first, part_of(spares->count, first));
    }
    close(end);
}

static void *hold(void *context) {
    struct tl_spares *spares = context;
    bool able = leave_table(spares);
    tl_lock_acquire(&spares->lock);
    spares->task = able ? HOLDING : UNABLE;
    tl_event_announce(&spares->changed);
    while (able && spares->task != ENDING) {
        if (spares->task == ASKED) {
            tl_lock_release(&spares->lock);
            give(spares);
            tl_lock_acquire(&spares->lock);
            spares->task = spares->task == ASKED ? HOLDING : spares->task;
            tl_event_announce(&spares->changed);
        } else {
            tl_event_wait(&spares->changed, &spares->lock, TL_FOREVER);
        }
    }
    tl_lock_release(&spares->lock);
    return NULL;
}

/* ---- the program's side */

struct tl_spares *tl_spares_keep(struct tl_descriptor *const *descriptors, size_t count) {
    struct tl_spares *spares = calloc(1, sizeof *spares + count * sizeof *spares->held);
    if (spares == NULL) {
        return NULL;
    }
    spares->count = count;
    for (size_t i = 0; i < count; i++) {
        spares->held[i] = *descriptors[i];
    }
    if (tl_thread_start(&spares->thread, hold, spares, "keeps descriptors") != 0) {
        free(spares);
        return NULL;
    }
    tl_lock_acquire(&spares->lock);
    while (spares->task == STARTING) {
        tl_event_wait(&spares->changed, &spares->lock, TL_FOREVER);
    }
    bool able = spares->task == HOLDING;
    tl_lock_release(&spares->lock);
    if (!able) {
        tl_spares_drop(spares);
        return NULL;
    }
    return spares;
}

/* Where the thread can reach this one: an address that the kernel chooses. The socket, or -1. */
static int listen_for(struct tl_spares *spares) {
    int door = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    socklen_t bytes = sizeof address;
    if (door >= 0 &&
        (bind(door, (const struct sockaddr *)&address, sizeof(sa_family_t)) != 0 ||
         getsockname(door, (struct sockaddr *)&address, &bytes) != 0 || listen(door, 1) != 0)) {
        close(door);
        return -1;
    }
    limit_waits(door);
    spares->caller = address;
    spares->caller_bytes = bytes;
    return door;
}

/* Of all processes that may have knocked, this one. */
static int open_to_this_process(int door) {
    int end = accept4(door, NULL, NULL, SOCK_CLOEXEC);
    while (end >= 0 && !is_this_process(end)) {
        close(end);
        end = accept4(door, NULL, NULL, SOCK_CLOEXEC);
    }
    return end;
}

static bool receive_all(int door, struct tl_descriptor *const *descriptors, size_t count) {
    int end = open_to_this_process(door);
    if (end < 0) {
        return false;
    }
    limit_waits(end);
    bool going = true;
    for (size_t first = 0; first < count && going; first += AT_ONCE) {
        going = receive_some(end, descriptors + first, part_of(count, first));
    }
    close(end);
    return going;
}

static bool all_ours(struct tl_descriptor *const *descriptors, size_t count) {
    bool ours = true;
    for (size_t i = 0; i < count && ours; i++) {
        ours = tl_descriptor_is_ours(descriptors[i]);
    }
    return ours;
}

int tl_spares_restore(struct tl_spares *spares, struct tl_descriptor *const *descriptors,
                      size_t count) {
    if (all_ours(descriptors, count)) {
        return 0;
    }
    int door = spares != NULL && spares->count == count ? listen_for(spares) : -1;
    if (door < 0) {
        return -1;
    }
    tl_lock_acquire(&spares->lock);
    spares->task = ASKED;
    tl_event_announce(&spares->changed);
    tl_lock_release(&spares->lock);
    bool received = receive_all(door, descriptors, count);
    close(door);
    tl_lock_acquire(&spares->lock);
    while (spares->task == ASKED) {
        tl_event_wait(&spares->changed, &spares->lock, TL_FOREVER);
    }
    tl_lock_release(&spares->lock);
    return received ? 0 : -1;
}

void tl_spares_drop(struct tl_spares *spares) {
    if (spares == NULL) {
        return;
    }
    tl_lock_acquire(&spares->lock);
    spares->task = ENDING;
    tl_event_announce(&spares->changed);
    tl_lock_release(&spares->lock);
    pthread_join(spares->thread, NULL);
    free(spares);
}

void tl_spares_forget(struct tl_spares *spares) {
    free(spares);
}
