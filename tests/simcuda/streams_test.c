/* Order in and between streams, events, host functions and flag words. */
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "kit.h"

/* The per-thread forms are macros in cuda.h; the tests name the symbols. */
CUresult cuMemsetD32Async_ptsz(CUdeviceptr target, unsigned value, size_t count, CUstream stream);
CUresult cuStreamSynchronize_ptsz(CUstream stream);
CUresult cuStreamQuery_ptsz(CUstream stream);
CUresult cuStreamWaitValue32_v2_ptsz(CUstream stream, CUdeviceptr address, cuuint32_t value,
                                     unsigned flags);

static uint32_t *flags; /* registered; every test begins with all words zero */

static CUdeviceptr flag(size_t index) {
    return (CUdeviceptr)(uintptr_t)&flags[index];
}

static void flags_clear(void) {
    for (size_t i = 0; i < 64; i++) {
        kit_set(&flags[i], 0);
    }
}

static void note(void *word) {
    kit_set(word, kit_get(word) + 1);
}

static void work_of_a_stream_is_in_order(void) {
    CUstream stream;
    CUdeviceptr word;
    uint32_t seen = 0;
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuMemAlloc(&word, 4));
    for (uint32_t i = 1; i <= 200; i++) {
        OK(cuMemsetD32Async(word, i, 1, stream));
    }
    OK(cuMemcpyDtoHAsync(&flags[5], word, 4, stream));
    OK(cuMemsetD32Async(word, 999, 1, stream));
    OK(cuStreamSynchronize(stream));
    CHECK(flags[5] == 200);
    OK(cuMemcpyDtoH(&seen, word, 4));
    CHECK(seen == 999);
    OK(cuMemFree(word));
    OK(cuStreamDestroy(stream));
    FAILS(cuStreamDestroy(stream), CUDA_ERROR_INVALID_HANDLE);
    FAILS(cuStreamSynchronize(stream), CUDA_ERROR_INVALID_HANDLE);
}

static void a_flag_holds_one_stream_only(void) {
    CUstream held;
    CUstream other;
    flags_clear();
    OK(cuStreamCreate(&held, CU_STREAM_NON_BLOCKING));
    OK(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
    OK(cuStreamWaitValue32(held, flag(0), 3, CU_STREAM_WAIT_VALUE_GEQ));
    OK(cuLaunchHostFunc(held, note, &flags[1]));
    OK(cuLaunchHostFunc(other, note, &flags[2]));
    OK(cuStreamSynchronize(other));
    CHECK(flags[2] == 1);
    FAILS(cuStreamQuery(held), CUDA_ERROR_NOT_READY);
    CHECK(kit_get(&flags[1]) == 0);
    kit_set(&flags[0], 3);
    OK(cuStreamSynchronize(held));
    OK(cuStreamQuery(held));
    CHECK(flags[1] == 1);
    OK(cuStreamDestroy(held));
    OK(cuStreamDestroy(other));
}

/* The legacy stream follows all blocking streams and they follow it; non-blocking ones take no
 * part. */
static void the_legacy_stream_is_a_barrier(void) {
    CUstream blocking;
    CUstream free_one;
    flags_clear();
    OK(cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
    OK(cuStreamCreate(&free_one, CU_STREAM_NON_BLOCKING));
    OK(cuStreamWaitValue32(blocking, flag(0), 1, CU_STREAM_WAIT_VALUE_EQ));
    OK(cuLaunchHostFunc(NULL, note, &flags[1]));
    FAILS(cuStreamQuery(NULL), CUDA_ERROR_NOT_READY);
    OK(cuLaunchHostFunc(free_one, note, &flags[2]));
    OK(cuStreamSynchronize(free_one));
    CHECK(kit_get(&flags[1]) == 0 && flags[2] == 1);
    kit_set(&flags[0], 1);
    OK(cuStreamSynchronize(CU_STREAM_LEGACY));
    CHECK(flags[1] == 1);

    OK(cuStreamWaitValue32(NULL, flag(3), 1, CU_STREAM_WAIT_VALUE_EQ));
    OK(cuLaunchHostFunc(blocking, note, &flags[4]));
    OK(cuLaunchHostFunc(free_one, note, &flags[5]));
    OK(cuStreamSynchronize(free_one));
    CHECK(kit_get(&flags[4]) == 0 && flags[5] == 1);
    kit_set(&flags[3], 1);
    OK(cuStreamSynchronize(blocking));
    CHECK(flags[4] == 1);
    OK(cuStreamDestroy(blocking));
    OK(cuStreamDestroy(free_one));
}

static void *second_thread(void *ctx) {
    OK(cuCtxSetCurrent(ctx));
    OK(cuMemsetD32Async_ptsz(flag(9), 77, 1, NULL));
    OK(cuStreamSynchronize_ptsz(NULL));
    return NULL;
}

static void each_thread_has_its_own_default_stream(void) {
    CUcontext ctx;
    pthread_t thread;
    flags_clear();
    OK(cuCtxGetCurrent(&ctx));
    OK(cuStreamWaitValue32_v2_ptsz(NULL, flag(8), 1, CU_STREAM_WAIT_VALUE_EQ));
    FAILS(cuStreamQuery_ptsz(NULL), CUDA_ERROR_NOT_READY);
    FAILS(cuStreamQuery(CU_STREAM_PER_THREAD), CUDA_ERROR_NOT_READY);
    CHECK(pthread_create(&thread, NULL, second_thread, ctx) == 0);
    CHECK(pthread_join(thread, NULL) == 0); /* it did not wait for ours */
    CHECK(kit_get(&flags[9]) == 77);
    kit_set(&flags[8], 1);
    OK(cuStreamSynchronize_ptsz(NULL));
}

static void events_order_and_time(void) {
    CUstream first;
    CUstream second;
    CUevent start;
    CUevent end;
    CUevent untimed;
    float milliseconds = -1;
    CUfunction spin = kit_function("sim_spin"); /* loading it while a stream is held would hang */
    flags_clear();
    OK(cuStreamCreate(&first, CU_STREAM_NON_BLOCKING));
    OK(cuStreamCreate(&second, CU_STREAM_NON_BLOCKING));
    OK(cuEventCreate(&start, CU_EVENT_DEFAULT));
    OK(cuEventCreate(&end, CU_EVENT_DEFAULT));
    OK(cuEventCreate(&untimed, CU_EVENT_DISABLE_TIMING));
    OK(cuEventQuery(start)); /* never recorded counts as done */
    OK(cuEventSynchronize(start));
    FAILS(cuEventElapsedTime(&milliseconds, start, end), CUDA_ERROR_INVALID_HANDLE);
    OK(cuEventRecord(start, first));
    OK(cuStreamWaitValue32(first, flag(0), 1, CU_STREAM_WAIT_VALUE_EQ));
    uint64_t spin_ns = 3000000;
    kit_launch(spin, first, (void *[]){&spin_ns});
    OK(cuEventRecord(end, first));
    OK(cuStreamWaitEvent(second, end, 0));
    OK(cuLaunchHostFunc(second, note, &flags[1]));
    FAILS(cuEventQuery(end), CUDA_ERROR_NOT_READY);
    OK(cuEventSynchronize(start));
    FAILS(cuEventElapsedTime(&milliseconds, start, end), CUDA_ERROR_NOT_READY);
    CHECK(kit_get(&flags[1]) == 0);
    kit_set(&flags[0], 1);
    OK(cuStreamSynchronize(second));
    CHECK(flags[1] == 1);
    OK(cuEventElapsedTime(&milliseconds, start, end));
    CHECK(milliseconds >= 3.0F); /* a kernel never takes less than it says */
    OK(cuEventRecord(untimed, first));
    FAILS(cuEventElapsedTime(&milliseconds, start, untimed), CUDA_ERROR_INVALID_HANDLE);
    OK(cuEventDestroy(start));
    FAILS(cuEventRecord(start, first), CUDA_ERROR_INVALID_HANDLE);
    OK(cuEventDestroy(end));
    OK(cuEventDestroy(untimed));
    OK(cuStreamDestroy(first));
    OK(cuStreamDestroy(second));
}

/* An event means the moment of its last record, also for waits that began before it. */
static void a_wait_is_for_the_record_of_its_moment(void) {
    CUstream held;
    CUstream waiting;
    CUevent event;
    flags_clear();
    OK(cuStreamCreate(&held, CU_STREAM_NON_BLOCKING));
    OK(cuStreamCreate(&waiting, CU_STREAM_NON_BLOCKING));
    OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    OK(cuEventRecord(event, held)); /* nothing before it */
    OK(cuStreamWaitEvent(waiting, event, 0));
    OK(cuStreamWaitValue32(held, flag(0), 1, CU_STREAM_WAIT_VALUE_EQ));
    OK(cuEventRecord(event, held));
    OK(cuStreamSynchronize(waiting));
    FAILS(cuEventQuery(event), CUDA_ERROR_NOT_READY);
    kit_set(&flags[0], 1);
    OK(cuEventSynchronize(event));
    OK(cuEventDestroy(event));
    OK(cuStreamDestroy(held));
    OK(cuStreamDestroy(waiting));
}

static void conditions_of_waits(void) {
    static const struct {
        unsigned condition;
        bool wide;
        uint64_t before, wanted, after;
    } cases[] = {
        {CU_STREAM_WAIT_VALUE_GEQ, false, 4, 5, 6},
        {CU_STREAM_WAIT_VALUE_GEQ, false, 0xfffffffe, 1, 2}, /* cyclic: 1 lies ahead */
        {CU_STREAM_WAIT_VALUE_EQ, false, 6, 5, 5},
        {CU_STREAM_WAIT_VALUE_AND, false, 4, 3, 2},
        {CU_STREAM_WAIT_VALUE_NOR, false, 0xffffffff, 0, 0xfffffffe},
        {CU_STREAM_WAIT_VALUE_GEQ, true, 1, 0x100000000, 0x100000001},
        {CU_STREAM_WAIT_VALUE_EQ, true, 5, 0x500000005, 0x500000005},
        {CU_STREAM_WAIT_VALUE_AND, true, 1, 0x100000000, 0x100000000},
    };
    CUstream stream;
    _Atomic uint64_t *wide = (_Atomic uint64_t *)(void *)&flags[16];
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        flags_clear();
        atomic_store(wide, cases[i].before);
        if (cases[i].wide) {
            OK(cuStreamWaitValue64(stream, flag(16), cases[i].wanted, cases[i].condition));
        } else {
            OK(cuStreamWaitValue32(stream, flag(16), (uint32_t)cases[i].wanted,
                                   cases[i].condition));
        }
        OK(cuLaunchHostFunc(stream, note, &flags[1]));
        FAILS(cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
        atomic_store(wide, cases[i].after);
        OK(cuStreamSynchronize(stream));
        CHECK(flags[1] == 1);
    }
    OK(cuStreamDestroy(stream));
}

static void memory_operations_come_in_batches(void) {
    CUstream stream;
    CUstream helper;
    CUdeviceptr device_word;
    flags_clear();
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuStreamCreate(&helper, CU_STREAM_NON_BLOCKING));
    OK(cuMemAlloc(&device_word, 8));
    OK(cuMemsetD8(device_word, 0, 8));
    OK(cuCtxSynchronize());
    CUstreamBatchMemOpParams batch[3];
    memset(batch, 0, sizeof batch);
    batch[0].writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
    batch[0].writeValue.address = flag(0);
    batch[0].writeValue.value = 1;
    batch[1].waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_64;
    batch[1].waitValue.address = device_word;
    batch[1].waitValue.value64 = 0x200000001;
    batch[1].waitValue.flags = CU_STREAM_WAIT_VALUE_EQ;
    batch[2].writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
    batch[2].writeValue.address = flag(2);
    batch[2].writeValue.value = 5;
    OK(cuStreamBatchMemOp(stream, 3, batch, 0));
    kit_await(&flags[0], 1); /* arrived, and waits */
    CHECK(kit_get(&flags[2]) == 0);
    OK(cuStreamWriteValue64(helper, device_word, 0x200000001, 0));
    OK(cuStreamSynchronize(stream));
    CHECK(flags[2] == 5);
    FAILS(cuStreamWaitValue32(stream, flag(0) + 2, 0, 0), CUDA_ERROR_INVALID_VALUE);
    FAILS(cuStreamWriteValue32(stream, (CUdeviceptr)(uintptr_t)batch, 0, 0),
          CUDA_ERROR_INVALID_VALUE); /* not registered */
    FAILS(cuStreamBatchMemOp(stream, 0, batch, 0), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemFree(device_word));
    OK(cuStreamDestroy(stream));
    OK(cuStreamDestroy(helper));
}

static void called_back(CUstream stream, CUresult status, void *data) {
    CHECK(stream != NULL);
    *(CUresult *)data = status;
}

/* Ending a context frees the threads that wait in it. */
static void a_dying_context_waits_for_nothing(void) {
    CUcontext ctx;
    CUstream stream;
    CUresult told = CUDA_SUCCESS;
    flags_clear();
    OK(cuCtxCreate(&ctx, NULL, 0, 0));
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CUstream failing;
    OK(cuStreamCreate(&failing, CU_STREAM_NON_BLOCKING));
    CUfunction trap = kit_function("sim_trap");
    OK(cuStreamWaitValue32(stream, flag(0), 1, CU_STREAM_WAIT_VALUE_EQ));
    OK(cuLaunchHostFunc(stream, note, &flags[1]));
    OK(cuStreamAddCallback(stream, called_back, &told, 0));
    kit_launch(trap, failing, NULL);
    FAILS(cuStreamSynchronize(stream), CUDA_ERROR_LAUNCH_FAILED);
    FAILS(cuStreamQuery(failing), CUDA_ERROR_LAUNCH_FAILED);
    OK(cuCtxDestroy(ctx));
    CHECK(flags[1] == 0 && told == CUDA_ERROR_LAUNCH_FAILED);

    OK(cuCtxCreate(&ctx, NULL, 0, 0));
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuStreamWaitValue32(stream, flag(0), 1, CU_STREAM_WAIT_VALUE_EQ));
    OK(cuLaunchHostFunc(stream, note, &flags[1]));
    OK(cuCtxDestroy(ctx)); /* does not hang */
    CHECK(flags[1] == 0);
    FAILS(cuStreamQuery(stream), CUDA_ERROR_INVALID_HANDLE);
}

int main(void) {
    kit_machine(NULL);
    kit_device(0);
    flags = kit_flags(NULL);
    OK(cuMemHostRegister(flags, 4096, CU_MEMHOSTREGISTER_PORTABLE));
    work_of_a_stream_is_in_order();
    a_flag_holds_one_stream_only();
    the_legacy_stream_is_a_barrier();
    each_thread_has_its_own_default_stream();
    events_order_and_time();
    a_wait_is_for_the_record_of_its_moment();
    conditions_of_waits();
    memory_operations_come_in_batches();
    a_dying_context_waits_for_nothing();
    return 0;
}
