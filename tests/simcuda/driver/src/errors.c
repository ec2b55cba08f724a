/* Error names and sentences. The sentences are the simulator's own words, not the driver's. */
#include "errors.h"

#include <string.h>

#include "entry.h"

struct error {
    CUresult value;
    const char *name;
    const char *sentence;
};

#define ERROR(value, sentence)                                                                     \
    { value, #value, sentence }

static const struct error errors[] = {
    ERROR(CUDA_SUCCESS, "no error"),
    ERROR(CUDA_ERROR_INVALID_VALUE, "an argument is invalid"),
    ERROR(CUDA_ERROR_OUT_OF_MEMORY, "not enough memory is left"),
    ERROR(CUDA_ERROR_NOT_INITIALIZED, "cuInit has not been called"),
    ERROR(CUDA_ERROR_DEINITIALIZED, "the driver is shutting down"),
    ERROR(CUDA_ERROR_DEVICE_UNAVAILABLE, "the device is lost"),
    ERROR(CUDA_ERROR_NO_DEVICE, "there is no device"),
    ERROR(CUDA_ERROR_INVALID_DEVICE, "there is no device of this number"),
    ERROR(CUDA_ERROR_INVALID_IMAGE, "the module's image cannot be read"),
    ERROR(CUDA_ERROR_INVALID_CONTEXT, "no context is current, or it was destroyed"),
    ERROR(CUDA_ERROR_MAP_FAILED, "a mapping failed"),
    ERROR(CUDA_ERROR_UNMAP_FAILED, "an unmapping failed"),
    ERROR(CUDA_ERROR_ALREADY_MAPPED, "the range is mapped already"),
    ERROR(CUDA_ERROR_NOT_MAPPED, "the range is not mapped"),
    ERROR(CUDA_ERROR_UNSUPPORTED_LIMIT, "the limit is unknown"),
    ERROR(CUDA_ERROR_CONTEXT_ALREADY_IN_USE, "the context is in use"),
    ERROR(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, "the devices cannot reach each other"),
    ERROR(CUDA_ERROR_INVALID_SOURCE, "the source is invalid"),
    ERROR(CUDA_ERROR_FILE_NOT_FOUND, "the file is not there"),
    ERROR(CUDA_ERROR_OPERATING_SYSTEM, "a call of the operating system failed"),
    ERROR(CUDA_ERROR_INVALID_HANDLE, "the handle is invalid"),
    ERROR(CUDA_ERROR_ILLEGAL_STATE, "the object is in no state for this"),
    ERROR(CUDA_ERROR_LOSSY_QUERY, "the answer would leave out edge data; ask the second version"),
    ERROR(CUDA_ERROR_NOT_FOUND, "the name is unknown"),
    ERROR(CUDA_ERROR_NOT_READY, "the work is not done yet"),
    ERROR(CUDA_ERROR_ILLEGAL_ADDRESS, "a kernel or copy touched an address it may not touch"),
    ERROR(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, "the launch needs more than the device has"),
    ERROR(CUDA_ERROR_LAUNCH_TIMEOUT, "a kernel ran too long"),
    ERROR(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, "peer access is enabled already"),
    ERROR(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, "peer access is not enabled"),
    ERROR(CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE, "the primary context is active"),
    ERROR(CUDA_ERROR_CONTEXT_IS_DESTROYED, "the context was destroyed"),
    ERROR(CUDA_ERROR_ASSERT, "a kernel's assertion failed"),
    ERROR(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, "the host memory is registered already"),
    ERROR(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, "the host memory is not registered"),
    ERROR(CUDA_ERROR_HARDWARE_STACK_ERROR, "a kernel's stack is broken"),
    ERROR(CUDA_ERROR_ILLEGAL_INSTRUCTION, "a kernel ran an instruction that is none"),
    ERROR(CUDA_ERROR_MISALIGNED_ADDRESS, "a kernel touched an address that is not aligned"),
    ERROR(CUDA_ERROR_LAUNCH_FAILED, "a kernel failed"),
    ERROR(CUDA_ERROR_NOT_PERMITTED, "this is not permitted"),
    ERROR(CUDA_ERROR_NOT_SUPPORTED, "the simulator does not have this"),
    ERROR(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "this cannot be captured"),
    ERROR(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "an earlier error ended the capture"),
    ERROR(CUDA_ERROR_STREAM_CAPTURE_MERGE, "two captures would be merged"),
    ERROR(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, "the capture was begun on another stream"),
    ERROR(CUDA_ERROR_STREAM_CAPTURE_UNJOINED, "a stream of the capture was not joined again"),
    ERROR(CUDA_ERROR_STREAM_CAPTURE_ISOLATION, "a dependency would leave the capture"),
    ERROR(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, "the legacy stream would join the capture"),
    ERROR(CUDA_ERROR_CAPTURED_EVENT, "the event was recorded in a capture"),
    ERROR(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD, "the capture was begun by another thread"),
    ERROR(CUDA_ERROR_TIMEOUT, "the time is over"),
    ERROR(CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE, "the graph is too different for an update"),
    ERROR(CUDA_ERROR_UNKNOWN, "an unknown error"),
};

enum { ERROR_TYPES = sizeof errors / sizeof *errors };

static const struct error *error_find(CUresult value) {
    for (size_t i = 0; i < ERROR_TYPES; i++) {
        if (errors[i].value == value) {
            return &errors[i];
        }
    }
    return NULL;
}

CUresult error_by_name(const char *name) {
    for (size_t i = 0; i < ERROR_TYPES; i++) {
        if (strcmp(errors[i].name, name) == 0) {
            return errors[i].value;
        }
    }
    return CUDA_SUCCESS;
}

bool error_is_sticky(CUresult error) {
    switch (error) {
    case CUDA_ERROR_ILLEGAL_ADDRESS:
    case CUDA_ERROR_LAUNCH_TIMEOUT:
    case CUDA_ERROR_ASSERT:
    case CUDA_ERROR_HARDWARE_STACK_ERROR:
    case CUDA_ERROR_ILLEGAL_INSTRUCTION:
    case CUDA_ERROR_MISALIGNED_ADDRESS:
    case CUDA_ERROR_LAUNCH_FAILED:
    case CUDA_ERROR_DEVICE_UNAVAILABLE:
        return true;
    default:
        return false;
    }
}

CUresult IMPL(cuGetErrorString)(CUresult error, const char **pStr) {
    const struct error *found = error_find(error);
    if (pStr == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *pStr = found == NULL ? NULL : found->sentence;
    return found == NULL ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult IMPL(cuGetErrorName)(CUresult error, const char **pStr) {
    const struct error *found = error_find(error);
    if (pStr == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *pStr = found == NULL ? NULL : found->name;
    return found == NULL ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}
