/* EXPECT: ends the test program with the place and the claim that does not
 * hold. */
#ifndef TIERLINE_TESTS_EXPECT_H
#define TIERLINE_TESTS_EXPECT_H

#include <stdio.h>
#include <stdlib.h>

#define EXPECT(claim)                                                                              \
    do {                                                                                           \
        if (!(claim)) {                                                                            \
            fprintf(stderr, "%s:%d: does not hold: %s\n", __FILE__, __LINE__, #claim);             \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

#endif
