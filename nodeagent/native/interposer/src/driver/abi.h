/* The CUDA driver's binary interface, as far as the interposer looks into it.
 *
 * The library is built where there is no cuda.h. tests/interposer/abi_test.c holds each of these
 * against NVIDIA's header. Enums are ints, addresses uint64_t, handles void *.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    ABI_SUCCESS = 0,
    ABI_INVALID_VALUE = 1,
    ABI_OUT_OF_MEMORY = 2,
    ABI_NOT_INITIALIZED = 3,
    ABI_ILLEGAL_STATE = 401,
    ABI_NOT_FOUND = 500,
    ABI_NOT_READY = 600,
    ABI_NOT_SUPPORTED = 801,
    ABI_SYSTEM_NOT_READY = 802,
    ABI_LOCATION_DEVICE = 1,
    ABI_LOCATION_HOST_NUMA = 3,
    ABI_ALLOCATION_PINNED = 1,
    ABI_ACCESS_READ_WRITE = 3,
    ABI_DEVICE_HOST_NUMA_ID = 134,
    ABI_EVENT_NO_TIMING = 2,
    ABI_MEMORY_DEVICE = 2,
    ABI_OPERAND_POINTER = 1,
    ABI_CAPTURE_NONE = 0,
    ABI_CAPTURE_ACTIVE = 1,
    ABI_CAPTURE_RELAXED = 2,
    ABI_CAPTURE_UNSUPPORTED = 900,
    ABI_LAUNCH_FAILED = 719,
    ABI_ILLEGAL_ADDRESS = 700,
    ABI_INVALID_CONTEXT = 201,
    ABI_CONTEXT_IS_DESTROYED = 709,
    ABI_POSIX_DESCRIPTOR = 1,
    ABI_ACCESS_READ = 1,
    ABI_HOST_PORTABLE = 1,
    ABI_HOST_MAPPED = 2,
    ABI_WAIT_AT_LEAST = 0,
    ABI_NON_BLOCKING = 1,
    ABI_LEGACY_STREAM = 1,
    ABI_THREAD_STREAM = 2,
    ABI_MEMORY_UNIFIED = 4,
    ABI_NODE_KERNEL = 0,
    ABI_NODE_COPY = 1,
    ABI_NODE_CHILD_GRAPH = 4,
    ABI_NODE_ALLOCATION = 10,
    ABI_NODE_FREE = 11,
    ABI_NODE_CONDITIONAL = 13,
    ABI_WAIT_VALUE_32 = 1,
    ABI_WRITE_VALUE_32 = 2,
    ABI_WAIT_VALUE_64 = 4,
    ABI_PER_THREAD_STREAM = 2,
    ABI_POINTER_CONTEXT = 1,
    ABI_POINTER_MEMORY_TYPE = 2,
    ABI_POINTER_DEVICE_ADDRESS = 3,
    ABI_POINTER_HOST_ADDRESS = 4,
    ABI_POINTER_BUFFER_ID = 7,
    ABI_POINTER_IS_MANAGED = 8,
    ABI_POINTER_DEVICE = 9,
    ABI_POINTER_IPC_CAPABLE = 10,
    ABI_POINTER_RANGE_BEGIN = 11,
    ABI_POINTER_RANGE_BYTES = 12,
    ABI_POINTER_MAPPED = 13,
    ABI_POINTER_HANDLE_TYPES = 14,
    ABI_POINTER_RDMA_CAPABLE = 15,
    ABI_POINTER_ACCESS = 16,
    ABI_POINTER_POOL = 17,
    ABI_POINTER_MAPPING_BYTES = 18,
    ABI_POINTER_MAPPING_BEGIN = 19,
    ABI_POINTER_BLOCK_ID = 20,
    ABI_NVML_NO_FUNCTION = 13,
    ABI_FILE_NO_DRIVER = 5001,
};

/* nvmlMemory_t, and nvmlMemory_v2_t, in which the reserved bytes are not among the used. */
struct abi_nvml_memory {
    uint64_t total, free, used;
};

struct abi_nvml_memory_v2 {
    unsigned int version;
    uint64_t total, reserved, free, used;
};

/* CUfileError_t */
struct abi_file_error {
    int error;
    int driver_error;
};

struct abi_ipc_handle {
    char reserved[64];
};

struct abi_location {
    int type;
    int id;
};

struct abi_allocation {
    int type;
    int handle_types;
    struct abi_location location;
    void *windows;
    unsigned char flags[8]; /* compression, RDMA, usage */
};

struct abi_access {
    struct abi_location location;
    int flags;
};

struct abi_array {
    size_t width, height;
    int format;
    unsigned int channels;
};

struct abi_array3d {
    size_t width, height, depth;
    int format;
    unsigned int channels;
    unsigned int flags;
};

struct abi_launch_config {
    unsigned int grid[3], block[3], shared_bytes;
    void *stream;
    void *attributes;
    unsigned int attribute_count;
};

/* One launch of cuLaunchCooperativeKernelMultiDevice. */
struct abi_device_launch {
    void *function;
    unsigned int grid[3], block[3], shared_bytes;
    void *stream;
    void **parameters;
};

/* CUDA_KERNEL_NODE_PARAMS; version 1 ends before `kernel`. */
struct abi_kernel_node {
    void *function;
    unsigned int grid[3], block[3], shared_bytes;
    void **parameters;
    void **extra;
    void *kernel;
    void *context;
};

/* CUDA_MEMCPY2D. */
struct abi_copy2d {
    size_t source_x, source_y;
    int source_type;
    const void *source_host;
    uint64_t source;
    void *source_array;
    size_t source_pitch;
    size_t target_x, target_y;
    int target_type;
    void *target_host;
    uint64_t target;
    void *target_array;
    size_t target_pitch;
    size_t width, height;
};

/* CUmemcpy3DOperand; of an array the type alone. */
struct abi_copy_operand {
    int type;
    uint64_t address;
    size_t row, layer;
    struct abi_location hint;
};

/* CUDA_MEMCPY3D_BATCH_OP. */
struct abi_copy_operation {
    struct abi_copy_operand source, target;
    size_t width, height, depth;
    int order;
    unsigned int flags;
};

/* CUDA_MEMCPY3D, and CUDA_MEMCPY3D_PEER, which has contexts where this has reserved pointers. */
struct abi_copy3d {
    size_t source_x, source_y, source_z, source_level;
    int source_type;
    const void *source_host;
    uint64_t source;
    void *source_array, *reserved0;
    size_t source_pitch, source_height;
    size_t target_x, target_y, target_z, target_level;
    int target_type;
    void *target_host;
    uint64_t target;
    void *target_array, *reserved1;
    size_t target_pitch, target_height;
    size_t width, height, depth;
};

/* CUDA_MEMCPY_NODE_PARAMS. */
struct abi_copy_node {
    int flags, reserved;
    void *context;
    struct abi_copy3d copy;
};

/* CUDA_CONDITIONAL_NODE_PARAMS. */
struct abi_conditional_node {
    uint64_t handle;
    int type;
    unsigned int count;
    void **graphs;
    void *context;
};

/* CUstreamBatchMemOpParams of a wait or write. */
/* NOLINTNEXTLINE(clang-analyzer-optin.performance.Padding) the driver's layout */
struct abi_word_operation {
    int operation;
    uint64_t address;
    uint64_t value;
    unsigned int flags;
    uint64_t reserved[2];
};

/* CUDA_BATCH_MEM_OP_NODE_PARAMS. */
struct abi_words_node {
    void *context;
    unsigned int count;
    struct abi_word_operation *operations;
    unsigned int flags;
};

/* CUDA_MEM_ALLOC_NODE_PARAMS up to its size. */
struct abi_allocation_node {
    uint64_t pool_properties[11];
    void *access;
    size_t access_count;
    size_t bytes;
};

struct abi_any_node {
    int type;
    int reserved[3];
    union {
        struct abi_kernel_node kernel;
        struct abi_copy_node copy;
        struct abi_allocation_node allocation;
        struct abi_conditional_node conditional;
        void *child_graph;
    } as;
};

struct abi_external_memory {
    int type;
    uint64_t handle[2];
    uint64_t bytes;
};

/* CUgraphExecUpdateResultInfo. */
struct abi_update_result {
    int result;
    void *node, *from_node;
};

/* CUgraphEdgeData. */
struct abi_edge {
    unsigned char from_port, to_port, type, reserved[5];
};

/* Whether the upper node may still run when the lower one begins. */
static inline bool abi_edge_is_early(const struct abi_edge *edge) {
    return edge->from_port != 0 || edge->type != 0;
}

static inline bool abi_on_device(const void *allocation) {
    const struct abi_allocation *a = allocation;
    return a != NULL && a->location.type == ABI_LOCATION_DEVICE;
}

/* Bytes of one element: formats 1-3, 8-10 and 0x10, 0x20 are CUDA's oldest, and the only ones whose
 * size is not that of a byte or less a channel. */
static inline uint64_t abi_channel_bytes(int format) {
    switch (format) {
    case 0x02: /* 16-bit integers */
    case 0x09:
    case 0x10: /* half */
        return 2;
    case 0x03: /* 32-bit integers */
    case 0x0a:
    case 0x20: /* float */
        return 4;
    default:
        return 1;
    }
}

static inline uint64_t abi_array3d_bytes(const void *descriptor, unsigned int levels) {
    const struct abi_array3d *a = descriptor;
    if (a == NULL) {
        return 0;
    }
    uint64_t width = a->width;
    uint64_t height = a->height;
    uint64_t depth = a->depth;
    uint64_t elements = 0;
    for (unsigned int level = 0; level < levels && level < 32; level++) {
        elements += width * (height > 0 ? height : 1) * (depth > 0 ? depth : 1);
        width = width > 1 ? width / 2 : 1;
        height /= 2;
        depth /= 2;
    }
    return elements * a->channels * abi_channel_bytes(a->format);
}

static inline uint64_t abi_array_bytes(const void *descriptor) {
    const struct abi_array *a = descriptor;
    if (a == NULL) {
        return 0;
    }
    return a->width * (a->height > 0 ? a->height : 1) * a->channels * abi_channel_bytes(a->format);
}

static inline void *abi_launch_stream(const void *config) {
    const struct abi_launch_config *c = config;
    return c == NULL ? NULL : c->stream;
}

static inline uint64_t abi_alloc_node_bytes(const void *parameters) {
    const struct abi_allocation_node *node = parameters;
    return node == NULL ? 0 : node->bytes;
}

static inline uint64_t abi_any_node_bytes(const void *parameters) {
    const struct abi_any_node *node = parameters;
    return node != NULL && node->type == ABI_NODE_ALLOCATION ? node->as.allocation.bytes : 0;
}

static inline uint64_t abi_external_bytes(const void *descriptor) {
    const struct abi_external_memory *memory = descriptor;
    return memory == NULL ? 0 : memory->bytes;
}
