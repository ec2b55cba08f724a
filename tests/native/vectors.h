/* Reads golden/messages.txt. */
#ifndef TIERLINE_TESTS_VECTORS_H
#define TIERLINE_TESTS_VECTORS_H

#include "tierline/protocol.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

struct vector {
    bool accepted;
    char *name;
    char *expected; /* the message as text, or the ERROR code */
    size_t length;
    uint8_t frame[TLP_MAX_FRAME];
};

/* The next vector of the file; false at its end. The strings belong to the
 * caller. */
bool next_vector(FILE *file, struct vector *out);

#endif
