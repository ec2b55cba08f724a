/* See nvml_memory.h. A monitor such as nvidia-smi never calls cuInit, so the budget is read from
 * the environment here when nothing has read it before. */
#include "entry/nvml_memory.h"

#include <stddef.h>

#include "budget/budget.h"
#include "driver/abi.h"

void nvml_show(void *memory) {
    struct abi_nvml_memory *told = memory;
    budget_read_once();
    if (told == NULL || !budget_configured()) {
        return;
    }
    size_t free_bytes = told->free;
    size_t total_bytes = told->total;
    budget_show_info(&free_bytes, &total_bytes);
    told->free = free_bytes;
    told->total = total_bytes;
    told->used = total_bytes - free_bytes;
}

void nvml_show_v2(void *memory) {
    struct abi_nvml_memory_v2 *told = memory;
    budget_read_once();
    if (told == NULL || !budget_configured()) {
        return;
    }
    struct abi_nvml_memory plain = {.total = told->total, .free = told->free};
    nvml_show(&plain);
    told->total = plain.total;
    told->reserved = 0; /* the driver's own share is not the task's */
    told->free = plain.free;
    told->used = plain.used;
}
