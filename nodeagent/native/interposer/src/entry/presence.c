/* See presence.h. */
#include "entry/presence.h"
#include "driver/standard_error.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

/* 0, or why nobody answers there. Does not wait: a full queue of connections is an answer. */
static int try_agent(const char *path) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    size_t length = strlen(path);
    if (length >= sizeof address.sun_path) {
        return ENAMETOOLONG;
    }
    memcpy(address.sun_path, path, length);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) {
        return errno;
    }
    int error = connect(fd, (const struct sockaddr *)&address, sizeof address) == 0 ? 0 : errno;
    close(fd);
    return error == EAGAIN ? 0 : error;
}

bool presence_permits_start(void) {
    static atomic_bool said;
    const char *path = getenv("TIERLINE_SOCKET");
    const char *required = getenv("TIERLINE_REQUIRED");
    bool must = required != NULL && strcmp(required, "1") == 0;
    if (path == NULL || path[0] == '\0') {
        if (must && getenv("TIERLINE_OBSERVE") == NULL) { /* observed runs need no agent */
            standard_error_say(
                "tierline: could not start CUDA under Tierline, which TIERLINE_REQUIRED=1 asks "
                "for: TIERLINE_SOCKET names no agent; set it, or unset TIERLINE_REQUIRED\n");
            return false;
        }
        return true;
    }
    int error = try_agent(path);
    if (error != 0 && (must || !atomic_exchange(&said, true))) {
        standard_error_say(
            "tierline: could not connect to the agent at TIERLINE_SOCKET=%s: %s; %s\n", path,
            strerror(error),
            must ? "CUDA stays off, since TIERLINE_REQUIRED=1: start the agent, or unset "
                   "TIERLINE_REQUIRED to run without Tierline"
                 : "this program runs without Tierline");
    }
    return error == 0 || !must;
}
