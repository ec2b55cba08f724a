/* See connection.h. */
#include "wire/connection.h"

#include "wire/words.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define SEND_PATIENCE_NS 30000000000ULL
#define SEND_SLICE_MS 1000

static int broken(struct tl_connection *connection, const char *what, int cause) {
    snprintf(connection->reason, sizeof connection->reason, "%s: %s", what, strerror(cause));
    return -1;
}

int tl_connection_open(struct tl_connection *connection, const char *path) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof address.sun_path) {
        errno = ENAMETOOLONG;
        return -1;
    }
    memcpy(address.sun_path, path, strlen(path) + 1);
    int socket_fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (socket_fd < 0) {
        return -1;
    }
    while (connect(socket_fd, (const struct sockaddr *)&address, sizeof address) != 0) {
        if (errno != EINTR) {
            int cause = errno;
            close(socket_fd);
            errno = cause;
            return -1;
        }
    }
    connection->socket = tl_descriptor_of(socket_fd);
    connection->received = 0;
    connection->descriptor_count = 0;
    connection->reason[0] = 0;
    return 0;
}

void tl_connection_close(struct tl_connection *connection) {
    tl_descriptor_close(&connection->socket);
    for (size_t i = 0; i < connection->descriptor_count; i++) {
        tl_descriptor_close(&connection->descriptors[i]);
    }
    connection->descriptor_count = 0;
    connection->received = 0;
}

bool tl_connection_is_ours(struct tl_connection *connection) {
    bool ours = tl_descriptor_is_ours(&connection->socket);
    if (!ours) {
        snprintf(connection->reason, sizeof connection->reason, "%s", TL_CLOSED_BY_PROGRAM);
    }
    return ours;
}

void tl_connection_shut_down(const struct tl_connection *connection) {
    if (tl_descriptor_is_ours(&connection->socket)) {
        shutdown(connection->socket.number, SHUT_RDWR);
    }
}

int tl_connection_send(struct tl_connection *connection, const uint8_t *frame, size_t length,
                       const int *descriptors, size_t descriptor_count) {
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(sizeof(int) * TLP_MAX_DESCRIPTORS)];
    } control;
    uint64_t end_ns = tl_now_ns() + SEND_PATIENCE_NS;
    size_t sent = 0;
    while (sent < length) {
        if (!tl_connection_is_ours(connection)) {
            return -1;
        }
        /* sendmsg only reads, but its type does not say so.
         * NOLINTNEXTLINE(performance-no-int-to-ptr) */
        struct iovec part = {.iov_base = (void *)(uintptr_t)(frame + sent),
                             .iov_len = length - sent};
        struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
        if (sent == 0 && descriptor_count > 0) {
            memset(&control, 0, sizeof control);
            message.msg_control = &control;
            message.msg_controllen = CMSG_SPACE(sizeof(int) * descriptor_count);
            struct cmsghdr *rights = CMSG_FIRSTHDR(&message);
            rights->cmsg_level = SOL_SOCKET;
            rights->cmsg_type = SCM_RIGHTS;
            rights->cmsg_len = CMSG_LEN(sizeof(int) * descriptor_count);
            memcpy(CMSG_DATA(rights), descriptors, sizeof(int) * descriptor_count);
        }
        ssize_t step = sendmsg(connection->socket.number, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (step >= 0) {
            sent += (size_t)step;
            continue;
        }
        if (errno == EAGAIN && tl_now_ns() < end_ns) {
            struct pollfd writable = {.fd = connection->socket.number, .events = POLLOUT};
            poll(&writable, 1, SEND_SLICE_MS);
        } else if (errno != EINTR) {
            return broken(connection, "the agent does not take messages", errno);
        }
    }
    return 0;
}

int tl_connection_poll(const struct tl_connection *connection, int timeout_ms) {
    if (!tl_descriptor_is_ours(&connection->socket)) {
        return 1;
    }
    struct pollfd readable = {.fd = connection->socket.number, .events = POLLIN};
    int ready = poll(&readable, 1, timeout_ms);
    if (ready < 0) {
        return errno == EINTR ? 0 : -1;
    }
    return ready > 0;
}

/* Keeps the descriptors of one message. Those that find no room are closed. */
static int keep_descriptors(struct tl_connection *connection, struct msghdr *message) {
    int overflow = 0;
    for (struct cmsghdr *at = CMSG_FIRSTHDR(message); at != NULL; at = CMSG_NXTHDR(message, at)) {
        if (at->cmsg_level != SOL_SOCKET || at->cmsg_type != SCM_RIGHTS) {
            continue;
        }
        size_t count = (at->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < count; i++) {
            int descriptor;
            memcpy(&descriptor, CMSG_DATA(at) + i * sizeof(int), sizeof descriptor);
            if (connection->descriptor_count < TL_MAX_QUEUED_DESCRIPTORS) {
                connection->descriptors[connection->descriptor_count++] =
                    tl_descriptor_of(descriptor);
            } else {
                close(descriptor);
                overflow = 1;
            }
        }
    }
    return overflow;
}

int tl_connection_receive(struct tl_connection *connection) {
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(sizeof(int) * 253)];
    } control;
    struct iovec part = {.iov_base = connection->buffer + connection->received,
                         .iov_len = sizeof connection->buffer - connection->received};
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = &control,
                             .msg_controllen = sizeof control};
    if (!tl_connection_is_ours(connection)) {
        return -1;
    }
    ssize_t step = recvmsg(connection->socket.number, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (step < 0) {
        if (errno == EAGAIN || errno == EINTR) {
            return 0;
        }
        return broken(connection, "reading from the agent failed", errno);
    }
    if (step == 0) {
        if (connection->reason[0] == 0) {
            snprintf(connection->reason, sizeof connection->reason,
                     "the agent closed the connection");
        }
        return -1;
    }
    connection->received += (size_t)step;
    int overflow = keep_descriptors(connection, &message);
    if ((message.msg_flags & MSG_CTRUNC) != 0) {
        return broken(connection,
                      "descriptors were lost (raise the limit on open files, ulimit -n)", EMFILE);
    }
    if (overflow != 0) {
        return broken(connection, "the agent sent descriptors that no message claims", EPROTO);
    }
    return 1;
}

int tl_connection_next(struct tl_connection *connection, struct tlp_header *header,
                       struct tlp_message *message) {
    struct tlp_refusal refusal;
    if (connection->received < TLP_HEADER_BYTES) {
        return 0;
    }
    if (tlp_decode_header(connection->buffer, header, &refusal) == 0) {
        if (connection->received < TLP_HEADER_BYTES + (size_t)header->payload_length) {
            return 0;
        }
        if (tlp_decode(header->type, connection->buffer + TLP_HEADER_BYTES, header->payload_length,
                       message, &refusal) == 0) {
            return 1;
        }
    }
    snprintf(connection->reason, sizeof connection->reason,
             "the agent sent a message that the protocol does not allow (%s)", refusal.reason);
    return -1;
}

void tl_connection_drop_frame(struct tl_connection *connection, const struct tlp_header *header) {
    size_t frame = TLP_HEADER_BYTES + (size_t)header->payload_length;
    connection->received -= frame;
    memmove(connection->buffer, connection->buffer + frame, connection->received);
}

int tl_connection_claim(struct tl_connection *connection, size_t count, struct tl_descriptor *out) {
    if (count > connection->descriptor_count) {
        snprintf(connection->reason, sizeof connection->reason,
                 "the agent announced %zu descriptors and sent %zu", count,
                 connection->descriptor_count);
        return -1;
    }
    memcpy(out, connection->descriptors, count * sizeof *out);
    connection->descriptor_count -= count;
    memmove(connection->descriptors, connection->descriptors + count,
            connection->descriptor_count * sizeof *out);
    return 0;
}
