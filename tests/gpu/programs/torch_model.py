"""A transformer block stack in PyTorch; `compile` or `graph` as argument. Prints a digest."""

import hashlib
import sys

import torch

torch.manual_seed(0)
torch.use_deterministic_algorithms(mode=True, warn_only=True)
layer = torch.nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True, dropout=0.0)
model = torch.nn.TransformerEncoder(layer, 4, enable_nested_tensor=False).cuda().eval().half()
given = torch.randn(4, 64, 256, device="cuda", dtype=torch.float16)
mode = sys.argv[1]
with torch.inference_mode():
    if mode == "graph":
        for _ in range(3):
            model(given)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            output = model(given)
        graph.replay()
    else:
        call = torch.compile(model) if mode == "compile" else model
        output = call(given)
    torch.cuda.synchronize()
    raw = output.cpu().numpy().tobytes()
free, total = torch.cuda.mem_get_info()
print(hashlib.sha256(raw).hexdigest(), total)
