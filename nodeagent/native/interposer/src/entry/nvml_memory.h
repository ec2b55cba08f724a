/* The task's budget as NVML tells it. The figures are of this process: what another process of the
 * task holds is not known here. */
#pragma once

/* Narrows what nvmlDeviceGetMemoryInfo answered: `memory` is an nvmlMemory_t. */
void nvml_show(void *memory);
/* The same for nvmlDeviceGetMemoryInfo_v2 and nvmlMemory_v2_t. */
void nvml_show_v2(void *memory);
