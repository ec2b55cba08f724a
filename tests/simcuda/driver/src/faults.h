/* Fault rules: which call fails, which device is lost, which link is slow. include/simcuda.h has
 * the grammar. */
#pragma once

#include "entry.h"

/* Called by cuInit: reads the rules that the environment gives. False, with a sentence, when one is
 * wrong. */
bool faults_start(void);

/* Counts this call against the rules, and waits if one says so; the error to answer, or
 * CUDA_SUCCESS. Called without locks. */
CUresult faults_on_call(const struct entry *entry);
