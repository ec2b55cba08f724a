/* One socket to the agent: whole frames out, whole frames and descriptors in.
 *
 * It knows the codec and SCM_RIGHTS; it knows nothing of requests, replies or arenas.
 *
 * Invariant: nothing is done to a socket that the program has closed: the connection is lost then.
 *
 * Invariant: descriptors received and not yet claimed by an FDS frame are owned by the connection
 * and closed with it; everything it hands out has passed the codec.
 */
#ifndef TIERLINE_CONNECTION_H
#define TIERLINE_CONNECTION_H

#include "tierline/protocol.h"
#include "wire/descriptor.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The kernel carries at most 253 descriptors on one message. */
#define TL_MAX_QUEUED_DESCRIPTORS 512

struct tl_connection {
    struct tl_descriptor socket; /* none: closed */
    size_t received;
    size_t descriptor_count;
    struct tl_descriptor descriptors[TL_MAX_QUEUED_DESCRIPTORS];
    char reason[256]; /* why it broke */
    uint8_t buffer[TLP_MAX_FRAME];
};

/* Returns 0, or -1 with errno set. */
int tl_connection_open(struct tl_connection *connection, const char *path);
void tl_connection_close(struct tl_connection *connection);
/* Whether the program has left the socket open; sets `reason` if not. */
bool tl_connection_is_ours(struct tl_connection *connection);
/* Lets both ends hear that it is over; a thread that polls it may go on doing so. */
void tl_connection_shut_down(const struct tl_connection *connection);

/* Sends a frame, with descriptors on its first byte. Returns 0, or -1 with `reason` set. */
int tl_connection_send(struct tl_connection *connection, const uint8_t *frame, size_t length,
                       const int *descriptors, size_t descriptor_count);

/* Waits until something can be read, or the socket is not ours any more. Returns 1, 0 after
 * timeout_ms, or -1. */
int tl_connection_poll(const struct tl_connection *connection, int timeout_ms);

/* Reads what is there without waiting. Returns 1, 0 for nothing, or -1 with `reason` set. */
int tl_connection_receive(struct tl_connection *connection);

/* Looks at the first frame. Returns 1 with *header and *message set (arrays lie in the buffer
 * until tl_connection_drop_frame), 0 if it is not complete, or -1 with `reason` set. */
int tl_connection_next(struct tl_connection *connection, struct tlp_header *header,
                       struct tlp_message *message);
void tl_connection_drop_frame(struct tl_connection *connection, const struct tlp_header *header);

/* Moves the oldest `count` descriptors to `out`, now owned by the caller. Returns 0, or -1 with
 * `reason` set if fewer have arrived. */
int tl_connection_claim(struct tl_connection *connection, size_t count, struct tl_descriptor *out);

#endif
