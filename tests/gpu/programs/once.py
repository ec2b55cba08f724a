"""Programs of which each job says what it computed: `once.py CASE JOBS FILE`.

What a case does at a given job is the same with and without Tierline, so the lines must be.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[3]))
from tests.gpu.programs import kept

D, DEPTH, EVERY = 4096, 24, 4
Job = Callable[[int], tuple[torch.Tensor, ...]]
GATHER = b"""
extern "C" __global__ void gather(const unsigned long long *table, unsigned short *out) {
    const unsigned short *at = (const unsigned short *)table[blockIdx.x];
    out[blockIdx.x * blockDim.x + threadIdx.x] = at[threadIdx.x * 1021];
}
extern "C" __global__ void apart(const unsigned short *base, const long long *distances,
                                 unsigned short *out) {
    const unsigned short *at = base + distances[blockIdx.x] / 2;
    out[blockIdx.x * blockDim.x + threadIdx.x] = at[threadIdx.x * 1021];
}
extern "C" __global__ void note(unsigned long long *table, unsigned long long at,
                                const void *weight) {
    table[at] = (unsigned long long)weight;
}
"""


def stack(depth: int = DEPTH) -> nn.Sequential:
    """Weights of 32 MiB a layer, in fp16."""
    return nn.Sequential(*itertools.chain(*((nn.Linear(D, D), nn.GELU()) for _ in range(depth))))


def ready(model: Any) -> Any:
    """On the GPU."""
    return model.half().cuda().eval()


def inputs(number: int) -> torch.Tensor:
    """Of a job; they repeat."""
    generator = torch.Generator("cuda").manual_seed(number % EVERY)
    return torch.randn(8, D, dtype=torch.half, device="cuda", generator=generator)


class Whole(nn.Module):
    """A body, and a head after it."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body, self.head = body, nn.Linear(D, D)

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        """As such models do."""
        output: torch.Tensor = self.head(self.body(given))
        return output


class Embeds(nn.Module):
    """A table that others have, too, read at both ends, as T5's decoder does."""

    def __init__(self, table: nn.Embedding) -> None:
        super().__init__()
        self.table, self.body = table, stack(DEPTH // 2)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Logits."""
        hidden: torch.Tensor = self.body(self.table(ids))
        return hidden @ self.table.weight[:256].t()


def features() -> Job:
    """A part called by itself and within its model."""
    whole = ready(Whole(stack()))
    return lambda number: (whole.body(inputs(number)), whole(inputs(number)))


def tied() -> Job:
    """Two models that share one embedding."""
    table = nn.Embedding(20000, D)
    models = [ready(Embeds(table)) for _ in range(2)]

    def job(number: int) -> tuple[torch.Tensor, ...]:
        ids = torch.arange(8, device="cuda") + number % EVERY
        return tuple(model(ids) for model in models)

    return job


def exchanged() -> Job:
    """Other weights between jobs: loaded, merged, scaled, cleared, trained."""
    model = ready(stack())
    other = {name: one.flip(0).clone().cpu() for name, one in model.state_dict().items()}
    layers = [one for one in model if isinstance(one, nn.Linear)]

    def job(number: int) -> tuple[torch.Tensor, ...]:
        if number == 16:
            model.load_state_dict(other)
        elif number == 20:
            left, right = torch.ones(2, D, 4, dtype=torch.half, device="cuda") * 1e-3
            layers[3].weight.data += left @ right.t()
        elif number == 24:
            layers[5].weight.mul_(0.5)
        elif number == 28:
            layers[7].bias.zero_()
            layers[8].weight.copy_(layers[9].weight)
        elif number == 32:
            layers[11].weight.grad = torch.ones_like(layers[11].weight)
            torch.optim.SGD([layers[11].weight], lr=1e-3).step()
        return (model(inputs(number)),)

    return job


def kernels(*names: str) -> list[Callable[..., None]]:
    """Kernels of GATHER: each takes its number of blocks and of threads, and addresses."""
    import ctypes  # noqa: PLC0415

    from cuda.bindings import driver, nvrtc  # noqa: PLC0415

    torch.cuda.synchronize()
    program = nvrtc.nvrtcCreateProgram(GATHER, b"gather.cu", 0, [], [])[1]
    major, minor = torch.cuda.get_device_capability()
    nvrtc.nvrtcCompileProgram(program, 1, [f"--gpu-architecture=sm_{major}{minor}".encode()])
    code = b" " * nvrtc.nvrtcGetCUBINSize(program)[1]
    nvrtc.nvrtcGetCUBIN(program, code)
    module = driver.cuModuleLoadData(code)[1]

    def callable_for(name: str) -> Callable[..., None]:
        function = driver.cuModuleGetFunction(module, name.encode())[1]

        def launch(blocks: int, threads: int, *words: int) -> None:
            stream = torch.cuda.current_stream().cuda_stream
            parameters = (words, (ctypes.c_uint64,) * len(words))
            answer = driver.cuLaunchKernel(
                function, blocks, 1, 1, threads, 1, 1, 0, stream, parameters, 0
            )
            assert int(answer[0]) == 0, answer

        return launch

    return [callable_for(name) for name in names]


def table(first: int, made: str = "copied") -> Job:
    """Reads by addresses of which the program has a table from job `first` on.

    It copies it to the device, has a kernel write it, or writes it to pinned memory. Or a kernel
    writes it at the begin of each job.
    """
    model = ready(stack())
    weights = [one.weight for one in model if isinstance(one, nn.Linear)]
    gather, note = kernels("gather", "note")
    addresses: list[torch.Tensor] = []

    def make() -> None:
        words = [one.data_ptr() for one in weights]
        if made == "copied":
            addresses[:] = [torch.tensor(words).cuda()]
        elif made == "pinned":
            addresses[:] = [torch.tensor(words).pin_memory()]
        else:
            addresses[:] = [torch.zeros(len(words), dtype=torch.int64, device="cuda")]
            for at, word in enumerate(words):
                note(1, 1, addresses[0].data_ptr(), at, word)

    def job(number: int) -> tuple[torch.Tensor, ...]:
        if number == first or made == "each":
            make()
        output = model(inputs(number))
        if not addresses:
            return (output,)
        found = torch.empty(len(weights) * 256, dtype=torch.half, device="cuda")
        gather(len(weights), 256, addresses[0].data_ptr(), found.data_ptr())
        return output, found

    if first == 0:
        make()
    return job


def counts() -> Job:
    """How often forward ran is part of what a job gives."""
    ran: list[int] = [0]
    model = ready(stack())
    model.register_forward_hook(lambda *_: ran.__setitem__(0, ran[0] + 1))
    return lambda number: (model(inputs(number)), torch.tensor(ran))


def experts() -> Job:
    """A mixture, each token to one expert."""

    class Mixture(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate = nn.Linear(D, 8)
            self.experts = nn.ModuleList(nn.Linear(D, D) for _ in range(8))

        def forward(self, given: torch.Tensor) -> torch.Tensor:
            chosen = self.gate(given).argmax(-1)
            output = torch.zeros_like(given)
            for number, expert in enumerate(self.experts):
                at = (chosen == number).nonzero().squeeze(-1)
                if len(at):
                    output[at] = expert(given[at])
            return given + output

    model = ready(nn.Sequential(*(Mixture() for _ in range(4))))
    return lambda number: (model(inputs(number)),)


class Eight(nn.Module):
    """Weights of eight bits, and a scale a row, in buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("packed", torch.randint(-127, 127, (D, D), dtype=torch.int8))
        self.register_buffer("scales", torch.rand(D, 1) / D)

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        """As quantised layers without a kernel of their own do."""
        weight = self.get_buffer("packed").to(given.dtype) * self.get_buffer("scales")
        return nn.functional.linear(given, weight).tanh()


def packed() -> Job:
    """Quantised; one layer is written between jobs, and one is another."""
    model = ready(nn.Sequential(*(Eight() for _ in range(DEPTH))))

    def job(number: int) -> tuple[torch.Tensor, ...]:
        if number == 20:
            model[3].packed.copy_(model[4].packed)
        elif number == 28:
            model[5].packed = model[6].packed.clone()
        return (model(inputs(number)),)

    return job


def fused() -> Job:
    """PyTorch's own kernels: Triton's launcher looks at each address before the launch."""
    model: Any = torch.compile(ready(stack()))
    return lambda number: (model(inputs(number)),)


def compiled() -> Job:
    """PyTorch's own graphs."""
    model: Any = torch.compile(ready(stack()), mode="reduce-overhead")
    return lambda number: (model(inputs(number)).clone(),)


def graphed() -> Job:
    """The program's own graph, after three calls on a side stream."""
    model, given = ready(stack()), inputs(0).clone()
    graph, made, output = torch.cuda.CUDAGraph(), [False], [given]

    def job(number: int) -> tuple[torch.Tensor, ...]:
        given.copy_(inputs(number))
        if number < 3:
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                output[0] = model(given)
            torch.cuda.current_stream().wait_stream(side)
            return (output[0],)
        if not made[0]:
            with torch.cuda.graph(graph):
                output[0] = model(given)
            made[0] = True
        graph.replay()
        return (output[0].clone(),)

    return job


def outlives() -> Job:
    """A graph of one shape, made after one call; later calls are of other shapes, or eager."""
    model = ready(stack())
    given = inputs(0).clone()
    graph, output = torch.cuda.CUDAGraph(), [given]

    def job(number: int) -> tuple[torch.Tensor, ...]:
        if number == 1:
            with torch.cuda.graph(graph):
                output[0] = functional(model, given)
        if number == 0 or number % 3 == 2:
            return (model(inputs(number)),)
        given.copy_(inputs(number))
        graph.replay()
        return (output[0].clone(),)

    return job


def functional(model: nn.Module, given: torch.Tensor) -> torch.Tensor:
    """What it gives, without a call of a module."""
    for layer in model.children():
        if isinstance(layer, nn.Linear):
            given = nn.functional.linear(given, layer.weight, layer.bias)
        else:
            given = nn.functional.gelu(given)
    return given


def block() -> Job:
    """A graph that is made in an explicit job, and replayed in jobs."""
    import tierline  # noqa: PLC0415

    model, given = ready(stack()), inputs(0).clone()
    graph, output = torch.cuda.CUDAGraph(), [given]

    def job(number: int) -> tuple[torch.Tensor, ...]:
        with tierline.job(name="block"):
            given.copy_(inputs(number))
            if number == 1:
                with torch.cuda.graph(graph):
                    output[0] = model(given)
            if number == 0:
                return (model(given),)
            graph.replay()
            return (output[0].clone(),)

    return job


def traced() -> Job:
    """A model of TorchScript."""
    model = torch.jit.trace(ready(stack()), inputs(0))
    return lambda number: (model(inputs(number)),)


def frozen() -> Job:
    """The same, frozen."""
    model = torch.jit.freeze(torch.jit.script(ready(stack())))
    return lambda number: (model(inputs(number)),)


def skips() -> Job:
    """Every fifth job leaves out half of the layers."""
    model = ready(stack())

    def job(number: int) -> tuple[torch.Tensor, ...]:
        given = inputs(number)
        for at in range(0, len(model), 4 if number % 5 == 4 else 2):
            given = model[at + 1](model[at](given))
        return (given,)

    return job


def turned() -> Job:
    """From some job on the layers come in the other order."""
    model = ready(stack())
    layers = list(model)

    def job(number: int) -> tuple[torch.Tensor, ...]:
        given = inputs(number)
        for layer in reversed(layers) if number >= 16 else layers:
            given = layer(given)
        return (given,)

    return job


def shuffled() -> Job:
    """From some job on each has an order of its own."""
    layers = list(ready(stack()))

    def job(number: int) -> tuple[torch.Tensor, ...]:
        given, order = inputs(number), list(layers)
        if number >= 16:
            random.Random(number % EVERY).shuffle(order)  # noqa: S311
        for layer in order:
            given = layer(given)
        return (given,)

    return job


def looped() -> Job:
    """From some job on layers are called again: some at once, some after others."""
    parts = list(ready(stack()))
    layers = [nn.Sequential(*pair) for pair in zip(parts[::2], parts[1::2], strict=True)]

    def job(number: int) -> tuple[torch.Tensor, ...]:
        given = inputs(number)
        for at, layer in enumerate(layers):
            for _ in range(3 if number >= 16 and at % 4 == 0 else 1):
                given = layer(given)
            if number >= 16 and at % 6 == 5:
                given = layers[at - 5](given)
        return (given,)

    return job


def shared() -> Job:
    """Two models, of which each third layer is one; a job runs both."""
    one, other = ready(stack(DEPTH // 2)), ready(stack(DEPTH // 2))
    for at in range(0, len(one), 6):
        other[at] = one[at]
    return lambda number: (one(inputs(number)), other(inputs(number + 1)))


def recurrent() -> Job:
    """Flattened weights of cuDNN's, all named by one call; others are loaded at some job."""
    model = ready(nn.LSTM(2048, 2048, 4, bidirectional=True, batch_first=True))
    other = {name: one.flip(0).clone().cpu() for name, one in model.state_dict().items()}

    def job(number: int) -> tuple[torch.Tensor, ...]:
        if number == 16:
            model.load_state_dict(other)
        given, _ = model(inputs(number).view(2, 8, 2048))
        return (given,)

    return job


def captured() -> Job:
    """As captured graphs of Tierline's."""
    import tierline  # noqa: PLC0415

    model = tierline.captured(ready(stack()))
    return lambda number: (model(inputs(number)),)


def drawn(case: str) -> Job:
    """One of kept.py."""
    return kept.draw(int(case.removeprefix(KEPT)), *kernels("gather", "apart"))


KEPT = "kept-"
CASES: dict[str, Callable[[], Job]] = {
    "features": features,
    "tied": tied,
    "exchanged": exchanged,
    "table-first": lambda: table(0),
    "table-late": lambda: table(20),
    "table-made": lambda: table(0, "made"),
    "table-pinned": lambda: table(0, "pinned"),
    "table-each": lambda: table(0, "each"),
    "counts": counts,
    "experts": experts,
    "captured": captured,
    "graphed": graphed,
    "outlives": outlives,
    "block": block,
    "traced": traced,
    "frozen": frozen,
    "skips": skips,
    "turned": turned,
    "shuffled": shuffled,
    "looped": looped,
    "shared": shared,
    "recurrent": recurrent,
    "packed": packed,
    "fused": fused,
    "compiled": compiled,
}


def main() -> None:
    """Run so many jobs."""
    case, jobs, path = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    torch.manual_seed(0)
    with open(f"{path}.{os.getpid()}", "w", buffering=1) as out, torch.no_grad():  # noqa: PTH123
        job = drawn(case) if case.startswith(KEPT) else CASES[case]()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        for number in range(jobs):
            begin.record()
            outputs = job(number)
            end.record()
            end.synchronize()
            raw = b"".join(
                one.contiguous().view(torch.uint8).cpu().numpy().tobytes() for one in outputs
            )
            digest = hashlib.blake2b(raw, digest_size=8).hexdigest()
            print(number, digest, f"{begin.elapsed_time(end):.2f}", file=out)


if __name__ == "__main__":
    main()
