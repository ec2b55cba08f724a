/* What calls cost a program that knows nothing of the library: see call_costs.h. */
#include <stdio.h>

#include "call_costs.h"

static void nothing(void) {
}

int main(void) {
    CUcontext context;
    if (cuInit(0) != CUDA_SUCCESS || cuDevicePrimaryCtxRetain(&context, 0) != CUDA_SUCCESS ||
        cuCtxSetCurrent(context) != CUDA_SUCCESS) {
        fputs("there is no GPU\n", stderr);
        return 1;
    }
    time_calls(NULL, 0, nothing, nothing);
    return 0;
}
