/* What streams wait for, and what they give back. With the gates' lock. */
#ifndef TIERLINE_FLOW_H
#define TIERLINE_FLOW_H

#include "arena/arena.h"

struct tl_stream;

/* Writes `consumed` if that is more than before. A CUresult. */
int tl_gates_give_back(struct tl_stream *stream, const struct tl_arena *arena, uint32_t value);
/* Says what streams are going to wait for; false if the job was revoked: then they must not. */
bool tl_gates_announce(uint32_t needs);

#endif
