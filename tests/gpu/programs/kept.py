"""Readers that nobody names, drawn from numbers: kernels that find weights by what was kept.

A case `kept-N` has layers of one size, of which a job runs some, and a kernel that reads weights by
distances from another tensor or by addresses, of now or of the first job. Meanwhile the program
fills memory that is free with other numbers. A managed process of it gives what it gives without
Tierline, or ends; it never gives other bytes.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import torch
from torch import nn

Launch = Callable[..., None]
SIZES = {1024: 384, 2048: 96, 4096: 24}
"""Layers of so many rows and columns in fp16: 2, 8, 32 MiB each."""


class Partial(nn.Module):
    """Layers of which some run, and a buffer of their size."""

    def __init__(self, size: int, used: Sequence[int]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(size, size, bias=False) for _ in range(SIZES[size]))
        self.register_buffer("state", torch.ones(size, size))
        self.used = used
        self.read: Callable[[], torch.Tensor] = lambda: torch.empty(0)

    def forward(self, given: torch.Tensor, *, first: bool) -> tuple[torch.Tensor, torch.Tensor]:
        """The reader comes before the layers or after them."""
        found = self.read() if first else None
        for at in self.used:
            given = torch.tanh(self.layers[at](given) * 2)
        return given, self.read() if found is None else found


def draw(number: int, gather: Launch, apart: Launch) -> Callable[[int], tuple[torch.Tensor, ...]]:
    """The job of case `number`, which takes a job's number."""
    drawn = random.Random(number)  # noqa: S311  # programs, no secrets
    size = drawn.choice(list(SIZES))
    used = drawn.choice([range(SIZES[size]), range(1), range(0, SIZES[size], 2)])
    model = Partial(size, used).half().cuda().eval().requires_grad_(requires_grad=False)
    weights = [one.get_parameter("weight") for one in model.layers]
    base = drawn.choice(
        [weights[0], weights[used[-1]], drawn.choice(weights), model.get_buffer("state")]
    )
    read = drawn.choice([list(range(len(weights))), drawn.sample(range(len(weights)), 3)])
    read = drawn.choice([read, read[:1]])
    way = drawn.choice(
        ["distances kept", "addresses kept", "addresses of now", "made on the device"]
    )
    first = drawn.random() < 0.5
    kept: list[int] = []
    table = torch.zeros(len(read), dtype=torch.int64).pin_memory()

    def find() -> torch.Tensor:
        now = [weights[at].data_ptr() for at in read]
        if not kept:
            kept[:] = now if way == "addresses kept" else [at - base.data_ptr() for at in now]
        found = torch.empty(len(read), 256, dtype=torch.half, device="cuda")
        torch.cuda.synchronize()
        if way == "made on the device":
            where = torch.tensor([at - now[0] for at in now]).cuda() + now[0]
            gather(len(read), 256, where.data_ptr(), found.data_ptr())
            torch.cuda.synchronize()
            return found
        table.copy_(torch.tensor(now if way == "addresses of now" else kept))
        if way == "distances kept":
            apart(len(read), 256, base.data_ptr(), table.data_ptr(), found.data_ptr())
        else:
            gather(len(read), 256, table.data_ptr(), found.data_ptr())
        return found

    model.read = find
    described = f"kept-{number}: {size} x {len(used)} of {len(weights)}, {way}, {len(read)} read"
    print(described, "first" if first else "last", flush=True)

    def job(at: int) -> tuple[torch.Tensor, ...]:
        generator = torch.Generator("cuda").manual_seed(at % 4)
        given = torch.randn(8, size, dtype=torch.half, device="cuda", generator=generator)
        noise = [torch.full((size, size), 7.0, dtype=torch.half, device="cuda") for _ in range(12)]
        del noise
        output: tuple[torch.Tensor, ...] = model(given, first=first)
        return output

    return job
