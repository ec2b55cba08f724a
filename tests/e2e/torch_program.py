"""A task's program as people write them: PyTorch, and nothing of Tierline.

Each job's output is held against what the same operators make of copies of the weights.
"""

import sys
import time
from importlib.util import find_spec

import torch

LAYERS = 12
print("python", "{}.{}".format(*sys.version_info), "numpy", find_spec("numpy"), flush=True)

torch.manual_seed(7)
# 64 KiB of weights each.
model = torch.nn.Sequential(*(torch.nn.Linear(128, 128, bias=False) for _ in range(LAYERS))).eval()
x = torch.rand(4, 128)
with torch.inference_mode():
    expected = x
    for weight in model.parameters():
        expected = torch.nn.functional.linear(expected, weight.clone())
    while True:
        print("right" if torch.equal(model(x), expected) else "WRONG", flush=True)
        time.sleep(0.2)
