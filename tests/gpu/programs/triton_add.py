"""A Triton kernel. Prints a digest."""

import hashlib

import torch
import triton
import triton.language as tl


@triton.jit
def add(a_pointer, b_pointer, out_pointer, count, block: tl.constexpr):  # type: ignore[no-untyped-def]  # compiled by Triton
    place = tl.program_id(0) * block + tl.arange(0, block)
    inside = place < count
    a = tl.load(a_pointer + place, mask=inside)
    b = tl.load(b_pointer + place, mask=inside)
    tl.store(out_pointer + place, a + b, mask=inside)


torch.manual_seed(0)
a, b = torch.randn(2, 100_003, device="cuda")
out = torch.empty_like(a)
add[(triton.cdiv(a.numel(), 1024),)](a, b, out, a.numel(), block=1024)
print(hashlib.sha256(out.cpu().numpy().tobytes()).hexdigest(), torch.cuda.mem_get_info()[1])
