/* The interposer's own description of the driver's binary interface, against NVIDIA's header. */
#include <cuda.h>
#include <cufile.h>
#include <nvml.h>
#include <stdio.h>

#include "driver/abi.h"

#define SAME_SIZE(own, theirs) _Static_assert(sizeof(own) == sizeof(theirs), #own)
#define SAME_PLACE(own, member, theirs, their_member)                                              \
    _Static_assert(offsetof(own, member) == offsetof(theirs, their_member), #own "." #member)

_Static_assert((int)ABI_INVALID_VALUE == (int)CUDA_ERROR_INVALID_VALUE, "value");
_Static_assert((int)ABI_OUT_OF_MEMORY == (int)CUDA_ERROR_OUT_OF_MEMORY, "value");
_Static_assert((int)ABI_NOT_INITIALIZED == (int)CUDA_ERROR_NOT_INITIALIZED, "value");
_Static_assert((int)ABI_NOT_FOUND == (int)CUDA_ERROR_NOT_FOUND, "value");
_Static_assert((int)ABI_NOT_READY == (int)CUDA_ERROR_NOT_READY, "value");
_Static_assert((int)ABI_NOT_SUPPORTED == (int)CUDA_ERROR_NOT_SUPPORTED, "value");
_Static_assert((int)ABI_LOCATION_DEVICE == (int)CU_MEM_LOCATION_TYPE_DEVICE, "value");
_Static_assert((int)ABI_SYSTEM_NOT_READY == (int)CUDA_ERROR_SYSTEM_NOT_READY, "value");
_Static_assert((int)ABI_LOCATION_HOST_NUMA == (int)CU_MEM_LOCATION_TYPE_HOST_NUMA, "value");
_Static_assert((int)ABI_ALLOCATION_PINNED == (int)CU_MEM_ALLOCATION_TYPE_PINNED, "value");
_Static_assert((int)ABI_ACCESS_READ_WRITE == (int)CU_MEM_ACCESS_FLAGS_PROT_READWRITE, "value");
_Static_assert((int)ABI_DEVICE_HOST_NUMA_ID == (int)CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID, "value");
_Static_assert((int)ABI_EVENT_NO_TIMING == (int)CU_EVENT_DISABLE_TIMING, "value");
_Static_assert((int)ABI_MEMORY_DEVICE == (int)CU_MEMORYTYPE_DEVICE, "value");
_Static_assert((int)ABI_POINTER_CONTEXT == (int)CU_POINTER_ATTRIBUTE_CONTEXT, "value");
_Static_assert((int)ABI_POINTER_MEMORY_TYPE == (int)CU_POINTER_ATTRIBUTE_MEMORY_TYPE, "value");
_Static_assert((int)ABI_POINTER_HOST_ADDRESS == (int)CU_POINTER_ATTRIBUTE_HOST_POINTER, "value");
_Static_assert((int)ABI_POINTER_BUFFER_ID == (int)CU_POINTER_ATTRIBUTE_BUFFER_ID, "value");
_Static_assert((int)ABI_POINTER_DEVICE == (int)CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, "value");
_Static_assert((int)ABI_POINTER_RANGE_BEGIN == (int)CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, "value");
_Static_assert((int)ABI_POINTER_RANGE_BYTES == (int)CU_POINTER_ATTRIBUTE_RANGE_SIZE, "value");
_Static_assert((int)ABI_POINTER_HANDLE_TYPES == (int)CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES,
               "value");
_Static_assert((int)ABI_POINTER_POOL == (int)CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, "value");
_Static_assert((int)ABI_POINTER_MAPPING_BYTES == (int)CU_POINTER_ATTRIBUTE_MAPPING_SIZE, "value");
_Static_assert((int)ABI_POINTER_MAPPING_BEGIN == (int)CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR,
               "value");
_Static_assert((int)ABI_POINTER_BLOCK_ID == (int)CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID, "value");
_Static_assert((int)ABI_ILLEGAL_STATE == (int)CUDA_ERROR_ILLEGAL_STATE, "value");
_Static_assert((int)ABI_CAPTURE_NONE == (int)CU_STREAM_CAPTURE_STATUS_NONE, "value");
_Static_assert((int)ABI_CAPTURE_ACTIVE == (int)CU_STREAM_CAPTURE_STATUS_ACTIVE, "value");
_Static_assert((int)ABI_CAPTURE_RELAXED == (int)CU_STREAM_CAPTURE_MODE_RELAXED, "value");
_Static_assert((int)ABI_CAPTURE_UNSUPPORTED == (int)CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "value");
_Static_assert((int)ABI_LAUNCH_FAILED == (int)CUDA_ERROR_LAUNCH_FAILED, "value");
_Static_assert((int)ABI_SYSTEM_NOT_READY == (int)CUDA_ERROR_SYSTEM_NOT_READY, "value");
_Static_assert((int)ABI_INVALID_CONTEXT == (int)CUDA_ERROR_INVALID_CONTEXT, "value");
_Static_assert((int)ABI_CONTEXT_IS_DESTROYED == (int)CUDA_ERROR_CONTEXT_IS_DESTROYED, "value");
_Static_assert((int)ABI_POSIX_DESCRIPTOR == (int)CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, "value");
_Static_assert((int)ABI_ALLOCATION_PINNED == (int)CU_MEM_ALLOCATION_TYPE_PINNED, "value");
_Static_assert((int)ABI_ACCESS_READ == (int)CU_MEM_ACCESS_FLAGS_PROT_READ, "value");
_Static_assert((int)ABI_ACCESS_READ_WRITE == (int)CU_MEM_ACCESS_FLAGS_PROT_READWRITE, "value");
_Static_assert((int)ABI_HOST_PORTABLE == CU_MEMHOSTREGISTER_PORTABLE, "value");
_Static_assert((int)ABI_HOST_MAPPED == CU_MEMHOSTREGISTER_DEVICEMAP, "value");
_Static_assert((int)ABI_WAIT_AT_LEAST == (int)CU_STREAM_WAIT_VALUE_GEQ, "value");
_Static_assert((int)ABI_MEMORY_DEVICE == (int)CU_MEMORYTYPE_DEVICE, "value");
_Static_assert((int)ABI_MEMORY_UNIFIED == (int)CU_MEMORYTYPE_UNIFIED, "value");
_Static_assert((int)ABI_NODE_COPY == (int)CU_GRAPH_NODE_TYPE_MEMCPY, "value");
_Static_assert((int)ABI_NODE_FREE == (int)CU_GRAPH_NODE_TYPE_MEM_FREE, "value");
_Static_assert((int)ABI_NODE_CONDITIONAL == (int)CU_GRAPH_NODE_TYPE_CONDITIONAL, "value");
_Static_assert((int)ABI_WAIT_VALUE_32 == (int)CU_STREAM_MEM_OP_WAIT_VALUE_32, "value");
_Static_assert((int)ABI_WAIT_VALUE_64 == (int)CU_STREAM_MEM_OP_WAIT_VALUE_64, "value");
_Static_assert((int)ABI_WRITE_VALUE_32 == (int)CU_STREAM_MEM_OP_WRITE_VALUE_32, "value");
_Static_assert((int)ABI_NODE_KERNEL == (int)CU_GRAPH_NODE_TYPE_KERNEL, "value");
_Static_assert((int)ABI_NODE_CHILD_GRAPH == (int)CU_GRAPH_NODE_TYPE_GRAPH, "value");
_Static_assert((int)ABI_NODE_ALLOCATION == (int)CU_GRAPH_NODE_TYPE_MEM_ALLOC, "value");
_Static_assert((int)ABI_PER_THREAD_STREAM == (int)CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM,
               "value");

SAME_SIZE(struct abi_ipc_handle, CUipcMemHandle);
SAME_SIZE(struct abi_location, CUmemLocation);
SAME_PLACE(struct abi_location, id, CUmemLocation, id);
SAME_PLACE(struct abi_allocation, location, CUmemAllocationProp, location);
SAME_SIZE(struct abi_allocation, CUmemAllocationProp);
SAME_SIZE(struct abi_access, CUmemAccessDesc);
SAME_PLACE(struct abi_access, flags, CUmemAccessDesc, flags);
SAME_SIZE(struct abi_array, CUDA_ARRAY_DESCRIPTOR);
SAME_PLACE(struct abi_array, channels, CUDA_ARRAY_DESCRIPTOR, NumChannels);
SAME_SIZE(struct abi_array3d, CUDA_ARRAY3D_DESCRIPTOR);
SAME_PLACE(struct abi_array3d, channels, CUDA_ARRAY3D_DESCRIPTOR, NumChannels);
SAME_SIZE(struct abi_launch_config, CUlaunchConfig);
SAME_PLACE(struct abi_launch_config, stream, CUlaunchConfig, hStream);
SAME_SIZE(struct abi_device_launch, CUDA_LAUNCH_PARAMS);
SAME_PLACE(struct abi_device_launch, parameters, CUDA_LAUNCH_PARAMS, kernelParams);
SAME_SIZE(struct abi_kernel_node, CUDA_KERNEL_NODE_PARAMS);
SAME_PLACE(struct abi_kernel_node, parameters, CUDA_KERNEL_NODE_PARAMS, kernelParams);
SAME_PLACE(struct abi_kernel_node, extra, CUDA_KERNEL_NODE_PARAMS_v1, extra);
SAME_PLACE(struct abi_kernel_node, kernel, CUDA_KERNEL_NODE_PARAMS, kern);
SAME_SIZE(struct abi_copy2d, CUDA_MEMCPY2D);
SAME_PLACE(struct abi_copy2d, source_type, CUDA_MEMCPY2D, srcMemoryType);
SAME_PLACE(struct abi_copy2d, source, CUDA_MEMCPY2D, srcDevice);
SAME_PLACE(struct abi_copy2d, source_pitch, CUDA_MEMCPY2D, srcPitch);
SAME_PLACE(struct abi_copy2d, height, CUDA_MEMCPY2D, Height);
SAME_SIZE(struct abi_copy_operation, CUDA_MEMCPY3D_BATCH_OP);
SAME_PLACE(struct abi_copy_operation, source.address, CUDA_MEMCPY3D_BATCH_OP, src.op.ptr.ptr);
SAME_PLACE(struct abi_copy_operation, source.row, CUDA_MEMCPY3D_BATCH_OP, src.op.ptr.rowLength);
SAME_PLACE(struct abi_copy_operation, source.layer, CUDA_MEMCPY3D_BATCH_OP, src.op.ptr.layerHeight);
SAME_PLACE(struct abi_copy_operation, target, CUDA_MEMCPY3D_BATCH_OP, dst);
SAME_PLACE(struct abi_copy_operation, depth, CUDA_MEMCPY3D_BATCH_OP, extent.depth);
_Static_assert(ABI_OPERAND_POINTER == (int)CU_MEMCPY_OPERAND_TYPE_POINTER, "a copy's operand");
SAME_SIZE(struct abi_copy3d, CUDA_MEMCPY3D);
SAME_SIZE(struct abi_copy3d, CUDA_MEMCPY3D_PEER);
SAME_PLACE(struct abi_copy3d, source_pitch, CUDA_MEMCPY3D_PEER, srcPitch);
SAME_PLACE(struct abi_copy3d, depth, CUDA_MEMCPY3D_PEER, Depth);
SAME_PLACE(struct abi_copy3d, source_type, CUDA_MEMCPY3D, srcMemoryType);
SAME_PLACE(struct abi_copy3d, source, CUDA_MEMCPY3D, srcDevice);
SAME_PLACE(struct abi_copy3d, source_pitch, CUDA_MEMCPY3D, srcPitch);
SAME_PLACE(struct abi_copy3d, width, CUDA_MEMCPY3D, WidthInBytes);
SAME_PLACE(struct abi_copy3d, depth, CUDA_MEMCPY3D, Depth);
SAME_SIZE(struct abi_copy_node, CUDA_MEMCPY_NODE_PARAMS);
SAME_PLACE(struct abi_copy_node, copy, CUDA_MEMCPY_NODE_PARAMS, copyParams);
SAME_SIZE(struct abi_conditional_node, CUDA_CONDITIONAL_NODE_PARAMS);
SAME_PLACE(struct abi_conditional_node, graphs, CUDA_CONDITIONAL_NODE_PARAMS, phGraph_out);
SAME_SIZE(struct abi_word_operation, CUstreamBatchMemOpParams);
SAME_PLACE(struct abi_word_operation, address, CUstreamBatchMemOpParams, waitValue.address);
SAME_PLACE(struct abi_word_operation, value, CUstreamBatchMemOpParams, waitValue.value);
SAME_PLACE(struct abi_word_operation, flags, CUstreamBatchMemOpParams, waitValue.flags);
SAME_PLACE(struct abi_word_operation, flags, CUstreamBatchMemOpParams, writeValue.flags);
SAME_SIZE(struct abi_words_node, CUDA_BATCH_MEM_OP_NODE_PARAMS);
SAME_PLACE(struct abi_words_node, operations, CUDA_BATCH_MEM_OP_NODE_PARAMS, paramArray);
SAME_SIZE(struct abi_update_result, CUgraphExecUpdateResultInfo);
SAME_PLACE(struct abi_update_result, from_node, CUgraphExecUpdateResultInfo, errorFromNode);
SAME_PLACE(struct abi_any_node, as.copy.copy, CUgraphNodeParams, memcpy.copyParams);
SAME_PLACE(struct abi_any_node, as.conditional, CUgraphNodeParams, conditional);
SAME_PLACE(struct abi_allocation_node, bytes, CUDA_MEM_ALLOC_NODE_PARAMS, bytesize);
SAME_PLACE(struct abi_any_node, as.kernel, CUgraphNodeParams, kernel);
SAME_PLACE(struct abi_any_node, as.kernel.kernel, CUgraphNodeParams, kernel.kern);
SAME_PLACE(struct abi_any_node, as.allocation.bytes, CUgraphNodeParams, alloc.bytesize);
SAME_PLACE(struct abi_any_node, as.child_graph, CUgraphNodeParams, graph.graph);
SAME_PLACE(struct abi_external_memory, bytes, CUDA_EXTERNAL_MEMORY_HANDLE_DESC, size);
SAME_SIZE(struct abi_edge, CUgraphEdgeData);
SAME_PLACE(struct abi_edge, from_port, CUgraphEdgeData, from_port);
SAME_PLACE(struct abi_edge, type, CUgraphEdgeData, type);
_Static_assert((int)ABI_NVML_NO_FUNCTION == (int)NVML_ERROR_FUNCTION_NOT_FOUND, "value");
SAME_SIZE(struct abi_nvml_memory, nvmlMemory_t);
SAME_PLACE(struct abi_nvml_memory, free, nvmlMemory_t, free);
SAME_SIZE(struct abi_nvml_memory_v2, nvmlMemory_v2_t);
SAME_PLACE(struct abi_nvml_memory_v2, reserved, nvmlMemory_v2_t, reserved);
SAME_PLACE(struct abi_nvml_memory_v2, free, nvmlMemory_v2_t, free);
_Static_assert((int)ABI_FILE_NO_DRIVER == (int)CU_FILE_DRIVER_NOT_INITIALIZED, "value");
SAME_SIZE(struct abi_file_error, CUfileError_t);
SAME_PLACE(struct abi_file_error, driver_error, CUfileError_t, cu_err);

static int wrong;
#define EXPECT(condition)                                                                          \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s does not hold\n", #condition);                                     \
            wrong = 1;                                                                             \
        }                                                                                          \
    } while (0)

int main(void) {
    CUDA_ARRAY_DESCRIPTOR line = {.Width = 10, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 2};
    EXPECT(abi_array_bytes(&line) == 80);
    line.Height = 3;
    line.Format = CU_AD_FORMAT_HALF;
    EXPECT(abi_array_bytes(&line) == 120);
    EXPECT(abi_array_bytes(NULL) == 0);
    CUDA_ARRAY3D_DESCRIPTOR block = {.Width = 8,
                                     .Height = 4,
                                     .Depth = 2,
                                     .Format = CU_AD_FORMAT_UNSIGNED_INT8,
                                     .NumChannels = 4};
    EXPECT(abi_array3d_bytes(&block, 1) == 256);
    EXPECT(abi_array3d_bytes(&block, 2) == 256 + 4 * 2 * 1 * 4);
    EXPECT(abi_array3d_bytes(NULL, 1) == 0);
    CUmemAllocationProp properties = {.location.type = CU_MEM_LOCATION_TYPE_DEVICE};
    EXPECT(abi_on_device(&properties));
    properties.location.type = CU_MEM_LOCATION_TYPE_HOST;
    EXPECT(!abi_on_device(&properties) && !abi_on_device(NULL));
    CUgraphNodeParams node = {.type = CU_GRAPH_NODE_TYPE_MEM_ALLOC};
    node.alloc.bytesize = 77;
    EXPECT(abi_any_node_bytes(&node) == 77);
    node.type = CU_GRAPH_NODE_TYPE_KERNEL;
    EXPECT(abi_any_node_bytes(&node) == 0);
    return wrong;
}
