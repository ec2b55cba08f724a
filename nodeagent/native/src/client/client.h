/* A client's life. */
#ifndef TIERLINE_CLIENT_H
#define TIERLINE_CLIENT_H

#include "tierline/tierline.h"

#include <stdint.h>

/* A client of its own, and its end. 0 or a code. */
int tl_connect(const char *socket_path, const char *process_name, uint32_t device,
               tierline_client **out);
void tl_close(tierline_client *client);
/* Copies a name that fits the protocol's field: cut at a whole character. */
void tl_copy_name(char out[64], const char *name);

#endif
