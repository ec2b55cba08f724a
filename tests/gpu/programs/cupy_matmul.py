"""CuPy: a chain of products. Prints a digest."""

import hashlib

import cupy

random = cupy.random.default_rng(0)
value = random.standard_normal((512, 512), dtype=cupy.float32)
weights = [random.standard_normal((512, 512), dtype=cupy.float32) for _ in range(6)]
for weight in weights:
    value = cupy.tanh(value @ weight)
print(hashlib.sha256(cupy.asnumpy(value).tobytes()).hexdigest(), cupy.cuda.runtime.memGetInfo()[1])
