/* The C library's transfers between a file or socket and memory, as programs find them where this
 * library is preloaded.
 *
 * Each calls the next one with the arguments that it has. Where a buffer holds weights, they are
 * there before and stay until after it (holds.h): so a weight can be read from a file, sent and
 * received like any other memory, at once and whole. A call of any other buffer costs two
 * comparisons more.
 *
 * stdio is here because the C library calls itself by names that nobody can take. What reaches the
 * kernel another way (io_uring, aio_read, syscall) and calls that fill a structure or a name
 * (getcwd, getrlimit) find no weight that is not there, and are told EFAULT.
 *
 * Sanitized builds leave this file out, as they do signals.c. No lock is taken, nothing allocated,
 * and no name looked up within a call, so that a signal handler may write.
 */
#undef _FORTIFY_SOURCE /* its functions are defined here */
#include "arena/addresses.h"
#include "libc/around.h"
#include "loading/holds.h"
#include "loading/origins.h"
#include "tierline/tierline.h"

#include <errno.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#undef fread_unlocked /* macros of some C libraries */
#undef fwrite_unlocked

/* From the kernel's side: what it writes to, and what it reads. */
#define INTO true
#define FROM false

/* The buffers of a call. */
struct buffers {
    struct iovec one;
    const struct iovec *many; /* NULL: `one` */
    size_t count;
};

static struct buffers one(const void *buffer, size_t size) {
    /* What the kernel only reads, too: iovec knows no other type.
     * NOLINTNEXTLINE(performance-no-int-to-ptr) */
    return (struct buffers){.one = {(void *)(uintptr_t)buffer, size}, .count = 1};
}

static struct buffers items(const void *buffer, size_t size, size_t count) {
    size_t bytes;
    return one(buffer, __builtin_mul_overflow(size, count, &bytes) ? 0 : bytes);
}

static struct buffers many(const struct iovec *parts, size_t count) {
    return (struct buffers){.many = parts, .count = parts != NULL ? count : 0};
}

static struct buffers vector(const struct iovec *parts, int count) {
    return many(parts, count > 0 ? (size_t)count : 0);
}

static struct buffers of(const struct msghdr *message) {
    return many(message->msg_iov, message->msg_iovlen);
}

static const struct iovec *parts(const struct buffers *buffers) {
    return buffers->many != NULL ? buffers->many : &buffers->one;
}

static bool hold(struct buffers buffers, bool writing) {
    for (size_t i = 0; i < buffers.count; i++) {
        const struct iovec *part = &parts(&buffers)[i];
        uintptr_t begin = (uintptr_t)part->iov_base;
        if (tl_addresses_may_hold(part->iov_base, part->iov_len) ||
            tl_origins_may_hold(begin, begin + part->iov_len)) {
            return tl_holds_take(parts(&buffers), buffers.count, writing);
        }
    }
    return false;
}

static void release(struct buffers buffers) {
    tl_holds_release(parts(&buffers), buffers.count);
}

static bool hold_messages(const struct mmsghdr *messages, unsigned count, bool writing) {
    bool any = false;
    for (unsigned i = 0; i < count; i++) {
        any = hold(of(&messages[i].msg_hdr), writing) || any;
    }
    return any;
}

static void release_messages(const struct mmsghdr *messages, unsigned count) {
    for (unsigned i = 0; i < count; i++) {
        release(of(&messages[i].msg_hdr));
    }
}

#define HELD(result, name, parameters, arguments, take, give_back)                                 \
    AROUND(                                                                                        \
        result, name, parameters, bool held = (take); result outcome = next arguments;             \
        if (held) { give_back; } return outcome;)
#define TRANSFER(result, name, parameters, arguments, given, writing)                              \
    HELD(result, name, parameters, arguments, hold(given, writing), release(given))

/* Parameters have names of ours.
 * NOLINTBEGIN(readability-inconsistent-declaration-parameter-name) */

/* ---- files and everything else that has a descriptor */

TRANSFER(ssize_t, read, (int fd, void *to, size_t size), (fd, to, size), one(to, size), INTO)
TRANSFER(ssize_t, pread, (int fd, void *to, size_t size, off_t at), (fd, to, size, at),
         one(to, size), INTO)
TRANSFER(ssize_t, pread64, (int fd, void *to, size_t size, off64_t at), (fd, to, size, at),
         one(to, size), INTO)
TRANSFER(ssize_t, readv, (int fd, const struct iovec *to, int count), (fd, to, count),
         vector(to, count), INTO)
TRANSFER(ssize_t, preadv, (int fd, const struct iovec *to, int count, off_t at),
         (fd, to, count, at), vector(to, count), INTO)
TRANSFER(ssize_t, preadv64, (int fd, const struct iovec *to, int count, off64_t at),
         (fd, to, count, at), vector(to, count), INTO)
TRANSFER(ssize_t, preadv2, (int fd, const struct iovec *to, int count, off_t at, int flags),
         (fd, to, count, at, flags), vector(to, count), INTO)
TRANSFER(ssize_t, preadv64v2, (int fd, const struct iovec *to, int count, off64_t at, int flags),
         (fd, to, count, at, flags), vector(to, count), INTO)

TRANSFER(ssize_t, write, (int fd, const void *from, size_t size), (fd, from, size), one(from, size),
         FROM)
TRANSFER(ssize_t, pwrite, (int fd, const void *from, size_t size, off_t at), (fd, from, size, at),
         one(from, size), FROM)
TRANSFER(ssize_t, pwrite64, (int fd, const void *from, size_t size, off64_t at),
         (fd, from, size, at), one(from, size), FROM)
TRANSFER(ssize_t, writev, (int fd, const struct iovec *from, int count), (fd, from, count),
         vector(from, count), FROM)
TRANSFER(ssize_t, pwritev, (int fd, const struct iovec *from, int count, off_t at),
         (fd, from, count, at), vector(from, count), FROM)
TRANSFER(ssize_t, pwritev64, (int fd, const struct iovec *from, int count, off64_t at),
         (fd, from, count, at), vector(from, count), FROM)
TRANSFER(ssize_t, pwritev2, (int fd, const struct iovec *from, int count, off_t at, int flags),
         (fd, from, count, at, flags), vector(from, count), FROM)
TRANSFER(ssize_t, pwritev64v2, (int fd, const struct iovec *from, int count, off64_t at, int flags),
         (fd, from, count, at, flags), vector(from, count), FROM)

/* ---- sockets */

TRANSFER(ssize_t, recv, (int fd, void *to, size_t size, int flags), (fd, to, size, flags),
         one(to, size), INTO)
TRANSFER(ssize_t, recvfrom,
         (int fd, void *to, size_t size, int flags, __SOCKADDR_ARG peer, socklen_t *peer_size),
         (fd, to, size, flags, peer, peer_size), one(to, size), INTO)
TRANSFER(ssize_t, recvmsg, (int fd, struct msghdr *message, int flags), (fd, message, flags),
         of(message), INTO)

TRANSFER(ssize_t, send, (int fd, const void *from, size_t size, int flags), (fd, from, size, flags),
         one(from, size), FROM)
TRANSFER(ssize_t, sendto,
         (int fd, const void *from, size_t size, int flags, __CONST_SOCKADDR_ARG peer,
          socklen_t peer_size),
         (fd, from, size, flags, peer, peer_size), one(from, size), FROM)
TRANSFER(ssize_t, sendmsg, (int fd, const struct msghdr *message, int flags), (fd, message, flags),
         of(message), FROM)

HELD(int, recvmmsg,
     (int fd, struct mmsghdr *messages, unsigned count, int flags, struct timespec *timeout),
     (fd, messages, count, flags, timeout), hold_messages(messages, count, INTO),
     release_messages(messages, count))
HELD(int, sendmmsg, (int fd, struct mmsghdr *messages, unsigned count, int flags),
     (fd, messages, count, flags), hold_messages(messages, count, FROM),
     release_messages(messages, count))

/* ---- memory of another process, into this one's or from it */

/* Both sides, if the other process is this one. */
static bool hold_both(pid_t process, struct buffers own, bool writing, struct buffers other) {
    bool any = hold(own, writing);
    return (process == getpid() && hold(other, !writing)) || any;
}

static void release_both(pid_t process, struct buffers own, struct buffers other) {
    release(own);
    if (process == getpid()) {
        release(other);
    }
}

HELD(ssize_t, process_vm_readv,
     (pid_t process, const struct iovec *to, unsigned long count, const struct iovec *from,
      unsigned long from_count, unsigned long flags),
     (process, to, count, from, from_count, flags),
     hold_both(process, many(to, count), INTO, many(from, from_count)),
     release_both(process, many(to, count), many(from, from_count)))
HELD(ssize_t, process_vm_writev,
     (pid_t process, const struct iovec *from, unsigned long count, const struct iovec *to,
      unsigned long to_count, unsigned long flags),
     (process, from, count, to, to_count, flags),
     hold_both(process, many(from, count), FROM, many(to, to_count)),
     release_both(process, many(from, count), many(to, to_count)))

/* ---- what else the kernel writes to memory of any size, or looks for there */

TRANSFER(ssize_t, getrandom, (void *to, size_t size, unsigned flags), (to, size, flags),
         one(to, size), INTO)
TRANSFER(int, getentropy, (void *to, size_t size), (to, size), one(to, size), INTO)
TRANSFER(ssize_t, readlink, (const char *path, char *to, size_t size), (path, to, size),
         one(to, size), INTO)
TRANSFER(ssize_t, readlinkat, (int folder, const char *path, char *to, size_t size),
         (folder, path, to, size), one(to, size), INTO)
TRANSFER(int, mlock, (const void *at, size_t size), (at, size), one(at, size), FROM)
TRANSFER(int, mlock2, (const void *at, size_t size, unsigned flags), (at, size, flags),
         one(at, size), FROM)

/* ---- stdio */

TRANSFER(size_t, fread, (void *to, size_t size, size_t count, FILE *file), (to, size, count, file),
         items(to, size, count), INTO)
TRANSFER(size_t, fread_unlocked, (void *to, size_t size, size_t count, FILE *file),
         (to, size, count, file), items(to, size, count), INTO)
TRANSFER(size_t, fwrite, (const void *from, size_t size, size_t count, FILE *file),
         (from, size, count, file), items(from, size, count), FROM)
TRANSFER(size_t, fwrite_unlocked, (const void *from, size_t size, size_t count, FILE *file),
         (from, size, count, file), items(from, size, count), FROM)

/* ---- those of them that check the buffer's size first, as fortified programs call them
 * NOLINTBEGIN(bugprone-reserved-identifier,readability-identifier-naming) */

ssize_t __read_chk(int fd, void *to, size_t size, size_t room);
ssize_t __pread_chk(int fd, void *to, size_t size, off_t at, size_t room);
ssize_t __pread64_chk(int fd, void *to, size_t size, off64_t at, size_t room);
ssize_t __recv_chk(int fd, void *to, size_t size, size_t room, int flags);
ssize_t __recvfrom_chk(int fd, void *to, size_t size, size_t room, int flags, __SOCKADDR_ARG peer,
                       socklen_t *peer_size);
size_t __fread_chk(void *to, size_t room, size_t size, size_t count, FILE *file);
size_t __fread_unlocked_chk(void *to, size_t room, size_t size, size_t count, FILE *file);

TRANSFER(ssize_t, __read_chk, (int fd, void *to, size_t size, size_t room), (fd, to, size, room),
         one(to, size), INTO)
TRANSFER(ssize_t, __pread_chk, (int fd, void *to, size_t size, off_t at, size_t room),
         (fd, to, size, at, room), one(to, size), INTO)
TRANSFER(ssize_t, __pread64_chk, (int fd, void *to, size_t size, off64_t at, size_t room),
         (fd, to, size, at, room), one(to, size), INTO)
TRANSFER(ssize_t, __recv_chk, (int fd, void *to, size_t size, size_t room, int flags),
         (fd, to, size, room, flags), one(to, size), INTO)
TRANSFER(ssize_t, __recvfrom_chk,
         (int fd, void *to, size_t size, size_t room, int flags, __SOCKADDR_ARG peer,
          socklen_t *peer_size),
         (fd, to, size, room, flags, peer, peer_size), one(to, size), INTO)
TRANSFER(size_t, __fread_chk, (void *to, size_t room, size_t size, size_t count, FILE *file),
         (to, room, size, count, file), items(to, size, count), INTO)
TRANSFER(size_t, __fread_unlocked_chk,
         (void *to, size_t room, size_t size, size_t count, FILE *file),
         (to, room, size, count, file), items(to, size, count), INTO)
/* NOLINTEND(bugprone-reserved-identifier,readability-identifier-naming)
 * NOLINTEND(readability-inconsistent-declaration-parameter-name) */
