/* The calls that copy: by direction, by unified address, between devices, and of boxes of rows.
 *
 * A call checks what it can see and submits one copy; the worker of the stream moves the bytes
 * (transfers.c). As the driver's documents say ("API synchronization behavior"), copies into
 * pageable memory end before the call returns; of copies from pageable memory to a device the call
 * returns when it has taken the bytes. Array memory is not simulated.
 */
#include <stdlib.h>
#include <string.h>

#include "box.h"
#include "context.h"
#include "entry.h"
#include "objects.h"
#include "streams.h"
#include "transfers.h"

static uint64_t address(const void *pointer) {
    return (uint64_t)(uintptr_t)pointer;
}

static struct copy flat(uint64_t target, bool target_on_host, uint64_t source, bool source_on_host,
                        size_t bytes) {
    return (struct copy){.source = source,
                         .target = target,
                         .width = bytes,
                         .height = 1,
                         .depth = 1,
                         .source_on_host = source_on_host,
                         .target_on_host = target_on_host};
}

static CUresult submit(CUstream handle, struct copy copy, bool wait) {
    CUstream stream;
    CUresult result = stream_resolve(handle, &stream);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    result = copy_check(stream->ctx, &copy);
    if (result != CUDA_SUCCESS || copy.width == 0 || copy.height == 0 || copy.depth == 0) {
        return result;
    }
    bool takes = copy_reads_pageable(&copy) && !copy_writes_pageable(&copy);
    bool ends = !takes && (wait || copy_reads_pageable(&copy) || copy_writes_pageable(&copy));
    struct work work = {.kind = WORK_COPY, .copy = copy};
    work.copy.staged = takes;
    if (takes && wait) { /* "a stream sync is performed before the copy is initiated" */
        result = stream_submit_and_wait(stream, calloc(1, sizeof work));
    }
    if (result != CUDA_SUCCESS) {
        return result;
    }
    return ends ? stream_submit_and_wait(stream, work_copy(&work))
                : stream_submit(stream, work_copy(&work), NULL);
}

CUresult IMPL(cuMemcpyHtoDAsync_v2)(CUdeviceptr dstDevice, const void *srcHost, size_t ByteCount,
                                    CUstream hStream) {
    return submit(hStream, flat(dstDevice, false, address(srcHost), true, ByteCount), false);
}

CUresult IMPL(cuMemcpyDtoHAsync_v2)(void *dstHost, CUdeviceptr srcDevice, size_t ByteCount,
                                    CUstream hStream) {
    return submit(hStream, flat(address(dstHost), true, srcDevice, false, ByteCount), false);
}

CUresult IMPL(cuMemcpyDtoDAsync_v2)(CUdeviceptr dstDevice, CUdeviceptr srcDevice, size_t ByteCount,
                                    CUstream hStream) {
    return submit(hStream, flat(dstDevice, false, srcDevice, false, ByteCount), false);
}

CUresult IMPL(cuMemcpyAsync)(CUdeviceptr dst, CUdeviceptr src, size_t ByteCount, CUstream hStream) {
    return submit(hStream, flat(dst, true, src, true, ByteCount), false);
}

CUresult IMPL(cuMemcpyPeerAsync)(CUdeviceptr dstDevice, CUcontext dstContext, CUdeviceptr srcDevice,
                                 CUcontext srcContext, size_t ByteCount, CUstream hStream) {
    CUresult result = context_check(dstContext);
    if (result == CUDA_SUCCESS) {
        result = context_check(srcContext);
    }
    return result == CUDA_SUCCESS
               ? submit(hStream, flat(dstDevice, false, srcDevice, false, ByteCount), false)
               : result;
}

CUresult IMPL(cuMemcpyHtoD_v2)(CUdeviceptr dstDevice, const void *srcHost, size_t ByteCount) {
    return submit(NULL, flat(dstDevice, false, address(srcHost), true, ByteCount), true);
}

CUresult IMPL(cuMemcpyDtoH_v2)(void *dstHost, CUdeviceptr srcDevice, size_t ByteCount) {
    return submit(NULL, flat(address(dstHost), true, srcDevice, false, ByteCount), true);
}

/* On the device alone the call does not wait. */
CUresult IMPL(cuMemcpyDtoD_v2)(CUdeviceptr dstDevice, CUdeviceptr srcDevice, size_t ByteCount) {
    return submit(NULL, flat(dstDevice, false, srcDevice, false, ByteCount), false);
}

CUresult IMPL(cuMemcpy)(CUdeviceptr dst, CUdeviceptr src, size_t ByteCount) {
    return submit(NULL, flat(dst, true, src, true, ByteCount), true);
}

CUresult IMPL(cuMemcpyPeer)(CUdeviceptr dstDevice, CUcontext dstContext, CUdeviceptr srcDevice,
                            CUcontext srcContext, size_t ByteCount) {
    return IMPL(cuMemcpyPeerAsync)(dstDevice, dstContext, srcDevice, srcContext, ByteCount, NULL);
}

static bool side_of(CUmemorytype type, const void *host, CUdeviceptr device, uint64_t *at,
                    bool *on_host) {
    *on_host = type != CU_MEMORYTYPE_DEVICE;
    *at = type == CU_MEMORYTYPE_HOST ? address(host) : device;
    return type == CU_MEMORYTYPE_HOST || type == CU_MEMORYTYPE_DEVICE ||
           type == CU_MEMORYTYPE_UNIFIED;
}

CUresult box_to_copy(const CUDA_MEMCPY3D *box, struct copy *copy) {
    uint64_t source;
    uint64_t target;
    bool source_on_host, target_on_host;
    if (box == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (box->srcMemoryType == CU_MEMORYTYPE_ARRAY || box->dstMemoryType == CU_MEMORYTYPE_ARRAY ||
        box->srcLOD != 0 || box->dstLOD != 0) {
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    if (!side_of(box->srcMemoryType, box->srcHost, box->srcDevice, &source, &source_on_host) ||
        !side_of(box->dstMemoryType, box->dstHost, box->dstDevice, &target, &target_on_host) ||
        (box->srcPitch != 0 && box->srcPitch < box->WidthInBytes) ||
        (box->dstPitch != 0 && box->dstPitch < box->WidthInBytes)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    /* A pitch of 0 means rows without gaps. */
    uint64_t source_pitch = box->srcPitch ? box->srcPitch : box->WidthInBytes;
    uint64_t target_pitch = box->dstPitch ? box->dstPitch : box->WidthInBytes;
    uint64_t source_slice = source_pitch * (box->srcHeight ? box->srcHeight : box->Height);
    uint64_t target_slice = target_pitch * (box->dstHeight ? box->dstHeight : box->Height);
    *copy = (struct copy){
        .source = source + box->srcXInBytes + box->srcY * source_pitch + box->srcZ * source_slice,
        .target = target + box->dstXInBytes + box->dstY * target_pitch + box->dstZ * target_slice,
        .source_pitch = source_pitch,
        .source_slice = source_slice,
        .target_pitch = target_pitch,
        .target_slice = target_slice,
        .width = box->WidthInBytes,
        .height = box->Height,
        .depth = box->Depth,
        .source_on_host = source_on_host,
        .target_on_host = target_on_host};
    return CUDA_SUCCESS;
}

void box_from_copy(const struct copy *copy, CUDA_MEMCPY3D *box) {
    memset(box, 0, sizeof *box);
    box->srcMemoryType = copy->source_on_host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
    box->dstMemoryType = copy->target_on_host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
    box->srcHost = copy->source_on_host ? (const void *)(uintptr_t)copy->source : NULL;
    box->dstHost = copy->target_on_host ? (void *)(uintptr_t)copy->target : NULL;
    box->srcDevice = copy->source_on_host ? 0 : copy->source;
    box->dstDevice = copy->target_on_host ? 0 : copy->target;
    box->srcPitch = copy->source_pitch;
    box->dstPitch = copy->target_pitch;
    box->srcHeight = copy->source_pitch ? copy->source_slice / copy->source_pitch : 0;
    box->dstHeight = copy->target_pitch ? copy->target_slice / copy->target_pitch : 0;
    box->WidthInBytes = copy->width;
    box->Height = copy->height;
    box->Depth = copy->depth;
}

static CUresult submit_box(CUstream handle, const CUDA_MEMCPY3D *box, bool wait) {
    struct copy copy;
    CUresult result = box_to_copy(box, &copy);
    return result == CUDA_SUCCESS ? submit(handle, copy, wait) : result;
}

static CUresult submit_plane(CUstream handle, const CUDA_MEMCPY2D *plane, bool wait) {
    if (plane == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUDA_MEMCPY3D box = {.srcXInBytes = plane->srcXInBytes,
                         .srcY = plane->srcY,
                         .srcMemoryType = plane->srcMemoryType,
                         .srcHost = plane->srcHost,
                         .srcDevice = plane->srcDevice,
                         .srcArray = plane->srcArray,
                         .srcPitch = plane->srcPitch,
                         .dstXInBytes = plane->dstXInBytes,
                         .dstY = plane->dstY,
                         .dstMemoryType = plane->dstMemoryType,
                         .dstHost = plane->dstHost,
                         .dstDevice = plane->dstDevice,
                         .dstArray = plane->dstArray,
                         .dstPitch = plane->dstPitch,
                         .WidthInBytes = plane->WidthInBytes,
                         .Height = plane->Height,
                         .Depth = 1};
    return submit_box(handle, &box, wait);
}

CUresult IMPL(cuMemcpy2D_v2)(const CUDA_MEMCPY2D *pCopy) {
    return submit_plane(NULL, pCopy, true);
}

CUresult IMPL(cuMemcpy2DUnaligned_v2)(const CUDA_MEMCPY2D *pCopy) {
    return submit_plane(NULL, pCopy, true);
}

CUresult IMPL(cuMemcpy2DAsync_v2)(const CUDA_MEMCPY2D *pCopy, CUstream hStream) {
    return submit_plane(hStream, pCopy, false);
}

CUresult IMPL(cuMemcpy3D_v2)(const CUDA_MEMCPY3D *pCopy) {
    return submit_box(NULL, pCopy, true);
}

CUresult IMPL(cuMemcpy3DAsync_v2)(const CUDA_MEMCPY3D *pCopy, CUstream hStream) {
    return submit_box(hStream, pCopy, false);
}

CUresult IMPL(cuMemcpyBatchAsync_v2)(CUdeviceptr *dsts, CUdeviceptr *srcs, size_t *sizes,
                                     size_t count, CUmemcpyAttributes *attrs, size_t *attrsIdxs,
                                     size_t numAttrs, CUstream hStream) {
    if (dsts == NULL || srcs == NULL || sizes == NULL || count == 0 || attrs == NULL ||
        attrsIdxs == NULL || numAttrs == 0 || hStream == NULL || hStream == CU_STREAM_LEGACY) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUresult result = CUDA_SUCCESS;
    for (size_t i = 0; i < count && result == CUDA_SUCCESS; i++) {
        result = submit(hStream, flat(dsts[i], true, srcs[i], true, sizes[i]), false);
    }
    return result;
}

static CUresult submit_fill(CUstream handle, CUdeviceptr target, size_t pitch, unsigned value,
                            unsigned element_bytes, size_t width, size_t height) {
    CUstream stream;
    CUresult result = stream_resolve(handle, &stream);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    struct work work = {.kind = WORK_FILL,
                        .fill = {.target = target,
                                 .pitch = pitch,
                                 .value = value,
                                 .element_bytes = element_bytes,
                                 .width = width,
                                 .height = height}};
    result = fill_check(stream->ctx, &work.fill);
    if (result != CUDA_SUCCESS || width == 0 || height == 0) {
        return result;
    }
    return stream_submit(stream, work_copy(&work), NULL);
}

CUresult IMPL(cuMemsetD8Async)(CUdeviceptr dstDevice, unsigned char uc, size_t N,
                               CUstream hStream) {
    return submit_fill(hStream, dstDevice, 0, uc, 1, N, 1);
}

CUresult IMPL(cuMemsetD16Async)(CUdeviceptr dstDevice, unsigned short us, size_t N,
                                CUstream hStream) {
    return submit_fill(hStream, dstDevice, 0, us, 2, N, 1);
}

CUresult IMPL(cuMemsetD32Async)(CUdeviceptr dstDevice, unsigned int ui, size_t N,
                                CUstream hStream) {
    return submit_fill(hStream, dstDevice, 0, ui, 4, N, 1);
}

CUresult IMPL(cuMemsetD2D8Async)(CUdeviceptr dstDevice, size_t dstPitch, unsigned char uc,
                                 size_t Width, size_t Height, CUstream hStream) {
    return submit_fill(hStream, dstDevice, dstPitch, uc, 1, Width, Height);
}

CUresult IMPL(cuMemsetD2D16Async)(CUdeviceptr dstDevice, size_t dstPitch, unsigned short us,
                                  size_t Width, size_t Height, CUstream hStream) {
    return submit_fill(hStream, dstDevice, dstPitch, us, 2, Width, Height);
}

CUresult IMPL(cuMemsetD2D32Async)(CUdeviceptr dstDevice, size_t dstPitch, unsigned int ui,
                                  size_t Width, size_t Height, CUstream hStream) {
    return submit_fill(hStream, dstDevice, dstPitch, ui, 4, Width, Height);
}

/* Without a stream a fill is ordered in the default stream and does not wait either. */
CUresult IMPL(cuMemsetD8_v2)(CUdeviceptr dstDevice, unsigned char uc, size_t N) {
    return submit_fill(NULL, dstDevice, 0, uc, 1, N, 1);
}

CUresult IMPL(cuMemsetD16_v2)(CUdeviceptr dstDevice, unsigned short us, size_t N) {
    return submit_fill(NULL, dstDevice, 0, us, 2, N, 1);
}

CUresult IMPL(cuMemsetD32_v2)(CUdeviceptr dstDevice, unsigned int ui, size_t N) {
    return submit_fill(NULL, dstDevice, 0, ui, 4, N, 1);
}

CUresult IMPL(cuMemsetD2D8_v2)(CUdeviceptr dstDevice, size_t dstPitch, unsigned char uc,
                               size_t Width, size_t Height) {
    return submit_fill(NULL, dstDevice, dstPitch, uc, 1, Width, Height);
}

CUresult IMPL(cuMemsetD2D16_v2)(CUdeviceptr dstDevice, size_t dstPitch, unsigned short us,
                                size_t Width, size_t Height) {
    return submit_fill(NULL, dstDevice, dstPitch, us, 2, Width, Height);
}

CUresult IMPL(cuMemsetD2D32_v2)(CUdeviceptr dstDevice, size_t dstPitch, unsigned int ui,
                                size_t Width, size_t Height) {
    return submit_fill(NULL, dstDevice, dstPitch, ui, 4, Width, Height);
}
