/* The client of a process under policy Swap: connected when the program first allocates device
 * memory, and shared with callers that connect by the library's interface. */
#ifndef TIERLINE_SWAP_CLIENT_H
#define TIERLINE_SWAP_CLIENT_H

#include <stdbool.h>

typedef struct tierline_client tierline_client;

/* Whether this process has such a client, or is to have one. */
bool tl_swap_wanted(void);
/* That client, made if need be; it is not the caller's to close. 0 or a code. */
int tl_swap_share(tierline_client **out);
bool tl_swap_owns(const tierline_client *client);

#endif
