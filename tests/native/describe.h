/* Prints decoded messages as text, so that golden vectors compare in two
 * languages. */
#ifndef TIERLINE_TESTS_DESCRIBE_H
#define TIERLINE_TESTS_DESCRIBE_H

#include "tierline/protocol.h"

#include <stdio.h>

/* Writes `Name(field=value, ...)` of a message that tlp_decode accepted. */
void describe_message(FILE *to, const struct tlp_message *message);

#endif
