"""JAX: a jitted perceptron. Prints a digest."""

import hashlib
import os

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import jax
import jax.numpy as jnp
import numpy as np

keys = jax.random.split(jax.random.PRNGKey(0), 7)
weights = [jax.random.normal(key, (512, 512)) / 22 for key in keys[:6]]


@jax.jit
def forward(weights: list[jax.Array], value: jax.Array) -> jax.Array:
    for weight in weights:
        value = jnp.tanh(value @ weight)
    return value


output = forward(weights, jax.random.normal(keys[6], (64, 512)))
for _ in range(3):
    output = forward(weights, output)
print(hashlib.sha256(np.asarray(output).tobytes()).hexdigest(), 0)
