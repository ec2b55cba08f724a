/* Copies and fills: the right bytes by every call, the right engine, and what is refused. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "kit.h"

enum { BYTES = 3 << 20, H2D = 0, D2H = 1, D2D = 2, PEER = 3 };

static unsigned char *pinned;

static void pattern(unsigned char *bytes, size_t count, unsigned seed) {
    for (size_t i = 0; i < count; i++) {
        bytes[i] = (unsigned char)(i * 31 + i / 4096 + seed);
    }
}

static void there_and_back(void) {
    CUdeviceptr first;
    CUdeviceptr second;
    CUstream stream;
    unsigned char *pageable = malloc(BYTES);
    unsigned char *expected = malloc(BYTES);
    CHECK(pageable != NULL && expected != NULL);
    OK(cuMemAlloc(&first, BYTES));
    OK(cuMemAlloc(&second, BYTES));
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    pattern(expected, BYTES, 7);
    memcpy(pinned, expected, BYTES);
    uint64_t h2d = simcuda_moved_bytes(0, H2D);
    uint64_t d2h = simcuda_moved_bytes(0, D2H);
    uint64_t d2d = simcuda_moved_bytes(0, D2D);
    OK(cuMemcpyHtoDAsync(first, pinned, BYTES, stream));
    OK(cuMemcpyDtoDAsync(second, first, BYTES, stream));
    OK(cuMemsetD8Async(first, 0, BYTES, stream));
    OK(cuMemcpyDtoHAsync(pageable, second, BYTES, stream));
    CHECK(memcmp(pageable, expected, BYTES) == 0); /* a pageable copy is done when it returns */
    CHECK(simcuda_moved_bytes(0, H2D) - h2d == BYTES);
    CHECK(simcuda_moved_bytes(0, D2H) - d2h == BYTES);
    CHECK(simcuda_moved_bytes(0, D2D) - d2d == BYTES);
    memset(pinned, 0, BYTES);
    OK(cuMemcpyAsync((CUdeviceptr)(uintptr_t)pinned, second, BYTES, stream));
    OK(cuStreamSynchronize(stream));
    CHECK(memcmp(pinned, expected, BYTES) == 0);
    OK(cuMemcpy(first, (CUdeviceptr)(uintptr_t)pageable, 1000));
    OK(cuMemcpy((CUdeviceptr)(uintptr_t)pinned + 5000, first, 1000));
    CHECK(memcmp(pinned + 5000, expected, 1000) == 0);
    OK(cuMemcpyHtoD(first, pinned, 0));
    OK(cuStreamDestroy(stream));
    OK(cuMemFree(first));
    OK(cuMemFree(second));
    free(pageable);
    free(expected);
}

static void between_devices(void) {
    CUcontext here;
    CUcontext there;
    CUdeviceptr source;
    CUdeviceptr target;
    unsigned char seen[4096];
    unsigned char expected[4096];
    OK(cuCtxGetCurrent(&here));
    OK(cuMemAlloc(&source, sizeof seen));
    OK(cuDevicePrimaryCtxRetain(&there, 1));
    OK(cuCtxPushCurrent(there));
    OK(cuMemAlloc(&target, sizeof seen));
    OK(cuCtxPopCurrent(NULL));
    pattern(expected, sizeof expected, 3);
    OK(cuMemcpyHtoD(source, expected, sizeof expected));
    uint64_t before = simcuda_moved_bytes(0, PEER);
    OK(cuMemcpyPeer(target, there, source, here, sizeof seen));
    OK(cuMemcpyDtoH(seen, target, sizeof seen));
    CHECK(memcmp(seen, expected, sizeof seen) == 0);
    CHECK(simcuda_moved_bytes(0, PEER) - before == sizeof seen);
    OK(cuMemFree(source));
    OK(cuCtxPushCurrent(there));
    OK(cuMemFree(target));
    OK(cuCtxPopCurrent(NULL));
    OK(cuDevicePrimaryCtxRelease(1));
}

static void rows_and_boxes(void) {
    enum { PITCH = 512, WIDTH = 100, HEIGHT = 20 };
    CUdeviceptr device;
    size_t pitch;
    unsigned char source[WIDTH * HEIGHT];
    unsigned char seen[WIDTH * HEIGHT];
    pattern(source, sizeof source, 11);
    OK(cuMemAllocPitch(&device, &pitch, WIDTH, HEIGHT, 4));
    CHECK(pitch == PITCH);
    OK(cuMemsetD2D8(device, pitch, 0xee, WIDTH, HEIGHT));
    CUDA_MEMCPY2D plane = {.srcMemoryType = CU_MEMORYTYPE_HOST,
                           .srcHost = source,
                           .srcPitch = WIDTH,
                           .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                           .dstDevice = device,
                           .dstPitch = pitch,
                           .dstXInBytes = 10,
                           .dstY = 1,
                           .WidthInBytes = WIDTH - 10,
                           .Height = HEIGHT - 1};
    OK(cuMemcpy2D(&plane));
    CUDA_MEMCPY3D box = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                         .srcDevice = device,
                         .srcPitch = pitch,
                         .srcHeight = HEIGHT,
                         .dstMemoryType = CU_MEMORYTYPE_HOST,
                         .dstHost = seen,
                         .dstPitch = WIDTH,
                         .WidthInBytes = WIDTH,
                         .Height = HEIGHT,
                         .Depth = 1};
    OK(cuMemcpy3D(&box));
    for (size_t y = 0; y < HEIGHT; y++) {
        for (size_t x = 0; x < WIDTH; x++) {
            unsigned char wanted = x < 10 || y < 1 ? 0xee : source[(y - 1) * WIDTH + (x - 10)];
            CHECK(seen[y * WIDTH + x] == wanted);
        }
    }
    box.srcPitch = WIDTH - 1;
    FAILS(cuMemcpy3D(&box), CUDA_ERROR_INVALID_VALUE);
    box.srcMemoryType = CU_MEMORYTYPE_ARRAY;
    FAILS(cuMemcpy3D(&box), CUDA_ERROR_NOT_SUPPORTED);
    OK(cuMemFree(device));
}

static void fills_of_each_width(void) {
    CUdeviceptr device;
    uint32_t words[4];
    uint16_t halves[4];
    OK(cuMemAlloc(&device, 4096));
    OK(cuMemsetD32(device, 0x01020304, 4));
    OK(cuMemcpyDtoH(words, device, sizeof words));
    CHECK(words[0] == 0x01020304 && words[3] == 0x01020304);
    OK(cuMemsetD16(device + 2, 0xbeef, 2));
    OK(cuMemcpyDtoH(halves, device, sizeof halves));
    CHECK(halves[0] == 0x0304 && halves[1] == 0xbeef && halves[2] == 0xbeef && halves[3] == 0x0102);
    FAILS(cuMemsetD32(device + 2, 0, 1), CUDA_ERROR_INVALID_VALUE);
    FAILS(cuMemsetD8(device, 0, 4097), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemFree(device));
}

static void what_is_no_device_memory_is_refused(void) {
    CUdeviceptr device;
    unsigned char bytes[64] = {0};
    OK(cuMemAlloc(&device, 4096));
    FAILS(cuMemcpyHtoD((CUdeviceptr)(uintptr_t)bytes, bytes, 8), CUDA_ERROR_INVALID_VALUE);
    FAILS(cuMemcpyDtoH(bytes, device + 4090, 16), CUDA_ERROR_INVALID_VALUE);
    FAILS(cuMemcpyDtoD(device, 0, 8), CUDA_ERROR_INVALID_VALUE);
    FAILS(cuMemsetD8((CUdeviceptr)(uintptr_t)bytes, 0, 8), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemFree(device));
}

/* Two pieces that were pinned one by one are not one piece. */
static void across_pieces(void) {
    CUdeviceptr device;
    char *pieces = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(pieces != MAP_FAILED);
    memset(pieces, 1, 8192);
    OK(cuMemAlloc(&device, 8192));
    OK(cuMemHostRegister(pieces, 4096, 0));
    OK(cuMemHostRegister(pieces + 4096, 4096, 0));
    OK(cuMemcpyHtoD(device, pieces, 4096));
    OK(cuMemcpyHtoD(device, pieces + 4096, 4096));
    FAILS(cuMemcpyHtoD(device, pieces, 8192), CUDA_ERROR_INVALID_VALUE);
    FAILS(cuMemcpyDtoH(pieces + 1, device, 4096), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemHostUnregister(pieces));
    OK(cuMemHostUnregister(pieces + 4096));
    OK(cuMemFree(device));
    munmap(pieces, 8192);
}

int main(void) {
    void *memory;
    kit_machine((const char *const[]){"DEVICES=2", "MEMORY=64Mi", "H2D=400Mi", "D2H=400Mi",
                                      "D2D=2Gi", "PEER=1Gi", "PAGEABLE=200Mi", "COPY_OVERHEAD=1000",
                                      NULL});
    kit_device(0);
    OK(cuMemHostAlloc(&memory, BYTES, 0));
    pinned = memory;
    there_and_back();
    between_devices();
    rows_and_boxes();
    fills_of_each_width();
    what_is_no_device_memory_is_refused();
    across_pieces();
    OK(cuMemFreeHost(memory));
    return 0;
}
