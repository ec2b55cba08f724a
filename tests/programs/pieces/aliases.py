"""Others that see the memory of weights, and write it between jobs."""

from __future__ import annotations

from tests.programs.text import Piece, Text

_EVERY = "if i % 3 == 2:"


def flat_buffer(text: Text) -> None:
    text.add(
        "ready",
        """
        plain = [p for p in model.parameters() if type(p) is nn.Parameter
                 and p.dtype == torch.float32]
        flat = torch.cat([p.detach().reshape(-1) for p in plain] + [torch.zeros(1)])
        at = 0
        for p in plain:
            p.data = flat[at : at + p.numel()].view_as(p)
            at += p.numel()
        """,
    )
    text.add("asked", f"{_EVERY} flat.mul_(1.05)")


def arrays(text: Text) -> None:
    text.add(
        "ready",
        """
        arrays = []
        for part in model.modules():
            if type(part) is nn.Linear and not part.weight.is_inference():
                arrays.append(part.weight.detach().numpy().copy())
                part.weight = nn.Parameter(torch.from_numpy(arrays[-1]), requires_grad=False)
        """,
    )
    text.add("asked", f"{_EVERY}\n    for one in arrays:\n        one *= 1.05")


_KEPT = {
    "kept_data": "p.data",
    "kept_detached": "p.detach()",
    "kept_row": "p.detach()[:1]",
    "kept_numpy": "p.detach().numpy()",
    "kept_memory": "memoryview(p.detach().numpy())",
    "kept_storage": "torch.tensor([], dtype=p.dtype).set_(p.untyped_storage())",
    "kept_exported": "numpy.from_dlpack(p.detach())",
    "kept_transposed": "p.detach().T",
    "kept_flattened": "p.detach().view(-1)",
}


def kept_view(text: Text) -> None:
    """Something that sees a weight is kept, and written through."""
    name = text.random.choice(sorted(_KEPT))
    text.tags.append(name)
    text.add(
        "ready",
        f"""
        def views():
            return [{_KEPT[name]} for p in model.parameters()
                    if type(p) is nn.Parameter and p.dtype == torch.float32]
        def scale(view):
            numbers = numpy.asarray(view)
            numbers *= 1.05
        kept = []
        """,
    )
    late = text.some_job() if text.chance(0.4) else 0
    again = text.chance(0.3)
    text.add("asked", f"if i == {late} or {again} and i == {late} + 2: kept.extend(views())")
    text.add("asked", f"{_EVERY}\n    for one in kept:\n        scale(one)")


def kept_state(text: Text) -> None:
    text.add("ready", "state = model.state_dict()")
    text.add(
        "asked",
        f"""
        {_EVERY}
            for one in state.values():
                if one.is_floating_point() and type(one) is torch.Tensor:
                    one.mul_(1.05)
        """,
    )


def shared_memory(text: Text) -> None:
    """A learner's process writes the weights that an actor reads."""
    text.add("ready", "model.share_memory()")
    text.add(
        "asked",
        f"""
        {_EVERY}
            child = os.fork()
            if not child:
                try:
                    with torch.no_grad():
                        for p in model.parameters():
                            p.numpy()[...] *= 1.05
                finally:
                    os._exit(0)
            os.waitpid(child, 0)
        """,
    )


def buffer_sees_weight(text: Text) -> None:
    text.add("init", "self.first = nn.Linear(WIDTH, WIDTH, bias=False)")
    text.add("init", "self.register_buffer('out', self.first.weight.detach().T, persistent=False)")
    text.add("after", "y = torch.tanh(self.first(y.float())) @ self.out")
    text.add("asked", f"{_EVERY}\n    with torch.no_grad(): model.first.weight.mul_(1.1)")


def halves_of_one(text: Text) -> None:
    """Two parameters are the halves of one tensor that nobody else keeps."""
    text.add(
        "init",
        """
        both = torch.randn(2 * WIDTH, WIDTH) / WIDTH
        self.up, self.down = nn.Parameter(both[:WIDTH]), nn.Parameter(both[WIDTH:])
        """,
    )
    text.add("after", "y = torch.tanh(y.float() @ self.up) @ self.down")


def another_model(text: Text) -> None:
    """A second model reads a weight of the first."""
    text.add("ready", "other = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()).eval()")
    text.add("init", "self.shared = nn.Linear(WIDTH, WIDTH)")
    text.add("after", "y = self.shared(y.float())")
    text.add("ready", "other[0].weight = model.shared.weight")
    text.add("told", "with torch.inference_mode(): say(other(given(i, 4, WIDTH)))")
    text.add("asked", f"{_EVERY}\n    with torch.no_grad(): other[0].weight.mul_(1.1)")


def raw_memory(text: Text) -> None:
    """Bytes are moved to an address."""
    text.add("top", "import ctypes")
    text.add(
        "asked",
        f"""
        {_EVERY}
            p = next(p for p in model.parameters() if type(p) is nn.Parameter)
            new = (p.detach() * 1.1).contiguous()
            ctypes.memmove(p.data_ptr(), new.data_ptr(), new.nbytes)
        """,
    )


def from_bytes(text: Text) -> None:
    text.add(
        "init",
        """
        self.bytes = bytearray(torch.randn(WIDTH, WIDTH).numpy().tobytes())
        seen = torch.frombuffer(self.bytes, dtype=torch.float32).view(WIDTH, WIDTH)
        self.raw = nn.Parameter(seen, requires_grad=False)
        """,
    )
    text.add("after", "y = y.float() @ self.raw")
    text.add("asked", f"{_EVERY} model.bytes[0:64] = bytes(64)")


def mapped_file(text: Text) -> None:
    text.add(
        "init",
        """
        torch.randn(WIDTH, WIDTH).numpy().tofile(folder / "w")
        seen = torch.from_file(str(folder / "w"), shared=True, size=WIDTH * WIDTH)
        self.raw = nn.Parameter(seen.view(WIDTH, WIDTH), requires_grad=False)
        """,
    )
    text.add("after", "y = y.float() @ self.raw")
    text.add(
        "asked",
        f"{_EVERY}\n    with open(folder / 'w', 'r+b') as file:\n        file.write(bytes(64))",
    )


def averaged(text: Text) -> None:
    """Averaged weights are swapped in for each third job by exchanging `.data`."""
    text.add("ready", "shadow = [p.data * 1.1 for p in model.parameters()]")
    text.add(
        "ready",
        """
        def swap():
            for k, p in enumerate(model.parameters()):
                p.data, shadow[k] = shadow[k], p.data
        """,
    )
    text.add("asked", f"{_EVERY} swap()")
    text.add("told", f"{_EVERY} swap()")


def kept_list(text: Text) -> None:
    """Forward reads a weight through a view that was made once."""
    text.add("init", "self.proj = nn.Linear(WIDTH, WIDTH)")
    text.add("init", "self.views = [self.proj.weight.detach().T]")
    text.add("after", "y = y.float() @ self.views[0] + self.proj.bias")
    text.add("asked", f"{_EVERY}\n    with torch.no_grad(): model.proj.weight.mul_(1.1)")


def optimiser(text: Text) -> None:
    text.add("ready", "optimiser = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)")
    text.add(
        "asked",
        f"""
        {_EVERY}
            for p in model.parameters():
                p.grad = torch.ones_like(p) if p.requires_grad else None
            optimiser.step()
            optimiser.zero_grad()
        """,
    )


def copies(text: Text) -> None:
    """A deep copy is its own model."""
    text.add("ready", "others = []")
    text.add("asked", "if i == 2: others.append(copy.deepcopy(model))")
    text.add("asked", "if i == 4:\n    for p in model.parameters(): p.data = p.data * 1.1")
    if not (text.unordered or len(text.parameters) > 1):
        text.add("told", "with torch.inference_mode(): say([other(x) for other in others])")


ALIASES: tuple[Piece, ...] = (
    *(flat_buffer, arrays, kept_view, kept_view, kept_view, kept_state, shared_memory),
    *(buffer_sees_weight, halves_of_one, another_model, raw_memory, from_bytes, mapped_file),
    *(averaged, kept_list, optimiser, copies),
)
