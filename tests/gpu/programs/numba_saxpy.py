"""Numba: a kernel of its own. Prints a digest."""

import hashlib

import numpy as np

if not hasattr(np, "row_stack"):  # numba-cuda 0.2x asks for it, NumPy 2.5 took it away
    np.row_stack = np.vstack  # type: ignore[attr-defined]

from numba import cuda


@cuda.jit
def saxpy(out, a, x, y):  # type: ignore[no-untyped-def]  # compiled by Numba
    index = cuda.grid(1)
    if index < out.size:
        out[index] = a * x[index] + y[index]


random = np.random.default_rng(0)
x, y = (cuda.to_device(random.standard_normal(100_003).astype(np.float32)) for _ in range(2))
out = cuda.device_array(100_003, np.float32)
saxpy[400, 256](out, np.float32(3), x, y)
info = cuda.current_context().get_memory_info()
print(hashlib.sha256(out.copy_to_host().tobytes()).hexdigest(), info[1])
