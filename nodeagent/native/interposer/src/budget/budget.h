/* The task's budget of device memory, bytes, over all devices of the process together. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Reads TIERLINE_BUDGET. False, and a sentence on stderr, when its value is not understood. */
bool budget_read_environment(void);
/* The same in a process that may never start CUDA; a value that is not understood is no budget. */
void budget_read_once(void);

/* Bytes above 0, with Ki, Mi, Gi or nothing after them. */
bool budget_parse(const char *text, uint64_t *bytes);

bool budget_configured(void);
uint64_t budget_bytes(void);
uint64_t budget_charged(void);

/* Charges bytes: CUDA_SUCCESS, or CUDA_ERROR_OUT_OF_MEMORY when they exceed the budget. */
int budget_reserve(uint64_t bytes);
/* Charges what was allocated already, beyond the budget if need be. */
void budget_add(uint64_t bytes);
void budget_release(uint64_t bytes);
void budget_forget(void);

/* What a program is shown of its device: any of these may be NULL. */
void budget_show_info(size_t *free_bytes, size_t *total_bytes);
void budget_show_total(size_t *total_bytes);
