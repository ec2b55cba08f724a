/* Weights that the kernel reads and writes: every transfer of the C library,
 * while jobs begin and end. */
#include "scenario_kit.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#undef fread_unlocked /* a macro that reads byte by byte */
#undef fwrite_unlocked

#define FIRST 5U /* extents of a transfer: it begins and ends within one */
#define PIECES 3
#define ROUNDS 60

/* Buffers of weights, and as many bytes that are none. */
struct transfer {
    int fd;
    FILE *file;
    struct iovec weights[PIECES];
    struct mmsghdr message;
    uint8_t *plain;
    size_t size;
};

typedef ssize_t way(struct transfer *transfer);

#define WAY(name, call)                                                                            \
    static ssize_t by_##name(struct transfer *t) {                                                 \
        return (ssize_t)(call);                                                                    \
    }
#define AT(t) (t)->weights[0].iov_base

WAY(write, write(t->fd, AT(t), t->size))
WAY(pwrite, pwrite(t->fd, AT(t), t->size, 0))
WAY(pwrite64, pwrite64(t->fd, AT(t), t->size, 0))
WAY(writev, writev(t->fd, t->weights, PIECES))
WAY(pwritev, pwritev(t->fd, t->weights, PIECES, 0))
WAY(pwritev64, pwritev64(t->fd, t->weights, PIECES, 0))
WAY(pwritev2, pwritev2(t->fd, t->weights, PIECES, 0, 0))
WAY(pwritev64v2, pwritev64v2(t->fd, t->weights, PIECES, 0, 0))
WAY(fwrite, fwrite(AT(t), 1, t->size, t->file) + (size_t)(0 * fflush(t->file)))
WAY(fwrite_unlocked, fwrite_unlocked(AT(t), 1, t->size, t->file) + (size_t)(0 * fflush(t->file)))

WAY(read, read(t->fd, AT(t), t->size))
WAY(pread, pread(t->fd, AT(t), t->size, 0))
WAY(pread64, pread64(t->fd, AT(t), t->size, 0))
WAY(readv, readv(t->fd, t->weights, PIECES))
WAY(preadv, preadv(t->fd, t->weights, PIECES, 0))
WAY(preadv64, preadv64(t->fd, t->weights, PIECES, 0))
WAY(preadv2, preadv2(t->fd, t->weights, PIECES, 0, 0))
WAY(preadv64v2, preadv64v2(t->fd, t->weights, PIECES, 0, 0))
WAY(fread, fread(AT(t), 1, t->size, t->file))
WAY(fread_unlocked, fread_unlocked(AT(t), 1, t->size, t->file))

WAY(send, send(t->fd, AT(t), t->size, 0))
WAY(sendto, sendto(t->fd, AT(t), t->size, 0, NULL, 0))
WAY(sendmsg, sendmsg(t->fd, &t->message.msg_hdr, 0))
WAY(sendmmsg, sendmmsg(t->fd, &t->message, 1, 0) == 1 ? (ssize_t)t->message.msg_len : -1)
WAY(recv, recv(t->fd, AT(t), t->size, 0))
WAY(recvfrom, recvfrom(t->fd, AT(t), t->size, 0, NULL, NULL))
WAY(recvmsg, recvmsg(t->fd, &t->message.msg_hdr, 0))
WAY(recvmmsg, recvmmsg(t->fd, &t->message, 1, 0, NULL) == 1 ? (ssize_t)t->message.msg_len : -1)

struct named_way {
    const char *name;
    way *run;
};
#define NAMED(name)                                                                                \
    { #name, by_##name }
static const struct named_way to_files[] = {
    NAMED(write),     NAMED(pwrite),   NAMED(pwrite64),    NAMED(writev), NAMED(pwritev),
    NAMED(pwritev64), NAMED(pwritev2), NAMED(pwritev64v2), NAMED(fwrite), NAMED(fwrite_unlocked)};
static const struct named_way from_files[] = {
    NAMED(read),     NAMED(pread),   NAMED(pread64),    NAMED(readv), NAMED(preadv),
    NAMED(preadv64), NAMED(preadv2), NAMED(preadv64v2), NAMED(fread), NAMED(fread_unlocked)};
static const struct named_way to_sockets[] = {NAMED(write),  NAMED(writev),  NAMED(send),
                                              NAMED(sendto), NAMED(sendmsg), NAMED(sendmmsg)};
static const struct named_way from_sockets[] = {NAMED(read),     NAMED(readv),   NAMED(recv),
                                                NAMED(recvfrom), NAMED(recvmsg), NAMED(recvmmsg)};
#define COUNT(ways) (sizeof(ways) / sizeof *(ways))

/* Of `size` bytes from the middle of extent FIRST on. */
static struct transfer transfer_of(const struct model *model, int fd, size_t size) {
    /* The API gives weights as read-only.
     * NOLINTNEXTLINE(performance-no-int-to-ptr) */
    uint8_t *at = (uint8_t *)(uintptr_t)model->base + FIRST * model->extent_bytes + 100;
    struct transfer t = {.fd = fd, .size = size, .plain = malloc(size)};
    EXPECT(t.plain != NULL);
    for (size_t i = 0; i < PIECES; i++) {
        size_t begin = i * size / PIECES;
        t.weights[i] = (struct iovec){at + begin, (i + 1) * size / PIECES - begin};
    }
    return t;
}

static void address_message(struct transfer *t) {
    t->message = (struct mmsghdr){.msg_hdr = {.msg_iov = t->weights, .msg_iovlen = PIECES}};
}

static int new_file(void) {
    int fd = memfd_create("transfers", MFD_CLOEXEC);
    EXPECT(fd >= 0);
    return fd;
}

/* Fills `plain` with what the weights are, in place, so that no weight is read
 * for it. */
static void fill_plain(const struct model *model, struct transfer *t) {
    uint8_t *extent = malloc(model->extent_bytes);
    EXPECT(extent != NULL);
    size_t at = 100;
    for (size_t done = 0; done < t->size;) {
        uint64_t length;
        fill_extent(model, (uint32_t)(FIRST + at / model->extent_bytes), extent, &length);
        size_t from = at % model->extent_bytes;
        size_t step = length - from < t->size - done ? length - from : t->size - done;
        memcpy(t->plain + done, extent + from, step);
        done += step;
        at += step;
    }
    free(extent);
}

static void expect_all(const struct transfer *t, const char *name, ssize_t moved,
                       const void *bytes) {
    if (moved != (ssize_t)t->size || memcmp(bytes, t->plain, t->size) != 0) {
        fprintf(stderr, "%s: %zd of %zu bytes: %s\n", name, moved, t->size, strerror(errno));
        exit(1);
    }
}

static void write_to_a_file(const struct model *model, const struct named_way *named) {
    struct transfer t = transfer_of(model, new_file(), 2 * model->extent_bytes);
    fill_plain(model, &t);
    t.file = fdopen(dup(t.fd), "w");
    EXPECT(t.file != NULL);
    ssize_t moved = named->run(&t);
    EXPECT(fclose(t.file) == 0);
    void *found = mmap(NULL, t.size, PROT_READ, MAP_SHARED, t.fd, 0);
    EXPECT(found != MAP_FAILED);
    expect_all(&t, named->name, moved, found);
    munmap(found, t.size);
    close(t.fd);
    free(t.plain);
}

/* The same bytes that the weights had: a reader sees no difference meanwhile. */
static void read_from_a_file(const struct model *model, const struct named_way *named) {
    struct transfer t = transfer_of(model, new_file(), 2 * model->extent_bytes);
    fill_plain(model, &t);
    EXPECT(pwrite(t.fd, t.plain, t.size, 0) == (ssize_t)t.size);
    t.file = fdopen(dup(t.fd), "r");
    EXPECT(t.file != NULL);
    expect_all(&t, named->name, named->run(&t), AT(&t));
    fclose(t.file);
    close(t.fd);
    free(t.plain);
}

/* One message that ends in the next extent: it arrives whole, or is lost. */
static void send_a_message(const struct model *model, const struct named_way *named) {
    int ends[2];
    EXPECT(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0);
    struct transfer t = transfer_of(model, ends[0], model->extent_bytes);
    fill_plain(model, &t);
    address_message(&t);
    uint8_t *found = malloc(t.size);
    EXPECT(found != NULL);
    EXPECT(named->run(&t) == (ssize_t)t.size);
    expect_all(&t, named->name, recv(ends[1], found, t.size, 0), found);
    free(found);
    close(ends[0]);
    close(ends[1]);
    free(t.plain);
}

static void receive_a_message(const struct model *model, const struct named_way *named) {
    int ends[2];
    EXPECT(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0);
    struct transfer t = transfer_of(model, ends[0], model->extent_bytes);
    fill_plain(model, &t);
    address_message(&t);
    EXPECT(send(ends[1], t.plain, t.size, 0) == (ssize_t)t.size);
    expect_all(&t, named->name, named->run(&t), AT(&t));
    close(ends[0]);
    close(ends[1]);
    free(t.plain);
}

static void each(const struct model *model, const struct named_way *ways, size_t count,
                 void (*move)(const struct model *, const struct named_way *)) {
    for (size_t i = 0; i < count; i++) {
        move(model, &ways[i]);
        EXPECT(run_job(model).fetched_bytes == 0); /* closed again, if it was not written */
    }
}

static void transfers(const char *socket_path) {
    struct model model = loaded(connected(socket_path), 0);
    each(&model, to_files, COUNT(to_files), write_to_a_file);
    each(&model, to_sockets, COUNT(to_sockets), send_a_message);
    each(&model, from_files, 1, read_from_a_file);
    tierline_close(model.client);
}

/* The first one that writes to weights keeps them, so each has a model of its
 * own. */
static void transfers_into(const char *socket_path) {
    for (size_t i = 0; i < COUNT(from_files); i++) {
        struct model model = loaded(connected(socket_path), 0);
        each(&model, &from_files[i], 1, read_from_a_file);
        tierline_close(model.client);
    }
    for (size_t i = 0; i < COUNT(from_sockets); i++) {
        struct model model = loaded(connected(socket_path), 0);
        each(&model, &from_sockets[i], 1, receive_a_message);
        tierline_close(model.client);
    }
}

static atomic_bool stop;

static void *run_jobs(void *context) {
    const struct model *model = context;
    while (!atomic_load(&stop)) {
        run_job(model);
    }
    return NULL;
}

/* Each job takes away what was fetched before it: of a transfer in progress it
 * must not. */
static void transfers_while_jobs_run(const char *socket_path) {
    struct model model = loaded(connected(socket_path), 0);
    pthread_t jobs;
    EXPECT(pthread_create(&jobs, NULL, run_jobs, &model) == 0);
    for (size_t i = 0; i < ROUNDS; i++) {
        write_to_a_file(&model, &to_files[i % COUNT(to_files)]);
        send_a_message(&model, &to_sockets[i % COUNT(to_sockets)]);
    }
    atomic_store(&stop, true);
    EXPECT(pthread_join(jobs, NULL) == 0);
    EXPECT(run_job(&model).fetched_bytes == 0);
    tierline_close(model.client);
}

/* What is nobody's, and what cannot be had, is answered as the kernel does. */
static void transfers_that_fail(const char *socket_path) {
    struct model model = loaded(connected(socket_path), 0);
    struct transfer t = transfer_of(&model, new_file(), model.extent_bytes);
    errno = 0;
    EXPECT(write(-1, AT(&t), t.size) == -1 && errno == EBADF);
    void *nowhere = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT(nowhere != MAP_FAILED);
    EXPECT(write(t.fd, nowhere, 1) == -1 && errno == EFAULT);
    EXPECT(run_job(&model).fetched_bytes == 0);
    ask_driver("loaded");
    errno = 0;
    EXPECT(write(t.fd, AT(&t), t.size) == -1 && errno == EFAULT);
    close(t.fd);
    free(t.plain);
    tierline_close(model.client);
}

static bool is_weights(const struct transfer *t) {
    return memcmp(AT(t), t->plain, t->size) == 0;
}

/* Nothing of it is a transfer between a descriptor and memory. */
static void other_calls(const char *socket_path) {
    struct model model = loaded(connected(socket_path), 0);
    struct transfer t = transfer_of(&model, -1, model.extent_bytes);
    fill_plain(&model, &t);
    EXPECT(mlock(AT(&t), 4096) == 0);
    EXPECT(run_job(&model).fetched_bytes == 0);

    uint8_t *copy = malloc(t.size);
    EXPECT(copy != NULL);
    struct iovec there = {copy, t.size};
    EXPECT(process_vm_readv(getpid(), &there, 1, t.weights, PIECES, 0) == (ssize_t)t.size);
    EXPECT(memcmp(copy, t.plain, t.size) == 0);
    EXPECT(run_job(&model).fetched_bytes == 0);
    EXPECT(process_vm_writev(getpid(), &there, 1, t.weights, PIECES, 0) == (ssize_t)t.size);
    EXPECT(is_weights(&t));
    tierline_close(model.client);

    free(copy);
    free(t.plain);

    model = loaded(connected(socket_path), 0);
    t = transfer_of(&model, -1, model.extent_bytes);
    fill_plain(&model, &t);
    EXPECT(getrandom(AT(&t), t.size / 2, 0) == (ssize_t)t.size / 2);
    EXPECT(!is_weights(&t));
    free(t.plain);
    tierline_close(model.client);

    model = loaded(connected(socket_path), 0);
    t = transfer_of(&model, -1, model.extent_bytes);
    fill_plain(&model, &t);
    EXPECT(getentropy(AT(&t), 200) == 0);
    EXPECT(!is_weights(&t));
    free(t.plain);
    tierline_close(model.client);

    model = loaded(connected(socket_path), 0);
    t = transfer_of(&model, -1, model.extent_bytes);
    EXPECT(readlink("/proc/self/exe", AT(&t), 4096) > 0);
    EXPECT(memcmp(AT(&t), "/", 1) == 0);
    free(t.plain);
    tierline_close(model.client);
}

const struct named_scenario transfer_scenarios[] = {
    {"transfers", transfers},
    {"transfers_into", transfers_into},
    {"transfers_while_jobs_run", transfers_while_jobs_run},
    {"transfers_that_fail", transfers_that_fail},
    {"other_calls", other_calls},
    {NULL, NULL},
};
