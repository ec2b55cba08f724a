"""Code that PyTorch does not know keeps the address of a weight: it reads or writes it there.

Nothing else of the program may give this weight other memory: its address would mean nothing, in
any process.
"""

from __future__ import annotations

from tests.programs.text import Piece, Text

_EVERY = "if i % 3 == 2:"


def _keep(text: Text) -> None:
    """A layer whose weight has pages of its own, and its address, taken before the first job."""
    text.add("top", "import ctypes")
    text.add("init", "self.known = nn.Linear(WIDTH, 64)")
    text.add("after", "y = y + self.known(torch.ones(WIDTH)).mean().to(y.dtype)")
    text.add(
        "ready",
        """
        place, size = model.known.weight.data_ptr(), model.known.weight.nbytes
        def there():
            return (ctypes.c_char * size).from_address(place)
        """,
    )


def _write_by_pytorch(text: Text) -> None:
    """What is read there must be what was written."""
    if text.chance(0.6):
        text.add(
            "asked", f"{_EVERY}\n    with torch.no_grad(): model.known.weight.mul_(1.1).add_(i)"
        )


def read_in_a_job(text: Text) -> None:
    _keep(text)
    _write_by_pytorch(text)
    text.add(
        "after",
        """
        raw = torch.empty(64, WIDTH)
        ctypes.memmove(raw.data_ptr(), place, size)
        y = y + raw.mean().to(y.dtype)
        """,
    )


def read_between_jobs(text: Text) -> None:
    """Now and then, for the first time when it has streamed."""
    _keep(text)
    _write_by_pytorch(text)
    text.add("told", f"if i >= {text.some_job()}: say(bytes(there()))")


def written_between_jobs(text: Text) -> None:
    _keep(text)
    text.add("init", "self.other = nn.Linear(WIDTH, 64)")
    part = text.random.choice(["0, size", "size // 3, size // 2", "4096, 4096"])
    text.add(
        "asked",
        f"""
        {_EVERY}
            first, count = {part}
            ctypes.memmove(place + first, model.other.weight.data_ptr() + first, count)
        """,
    )
    text.add("end", "say(model.known.weight.detach().clone())")


def sent_by_the_kernel(text: Text) -> None:
    _keep(text)
    _write_by_pytorch(text)
    text.add(
        "told",
        f"""
        if i >= {text.some_job()}:
            with open(folder / "sent", "wb", buffering=0) as file:
                file.write(there())
            say((folder / "sent").read_bytes())
        """,
    )


def read_in_a_child(text: Text) -> None:
    _keep(text)
    text.add(
        "told",
        f"""
        if i >= {text.some_job()}:
            child = os.fork()
            if not child:
                try:
                    (folder / "seen").write_bytes(bytes(there()))
                finally:
                    os._exit(0)
            os.waitpid(child, 0)
            say((folder / "seen").read_bytes())
        """,
    )


ADDRESSES: tuple[Piece, ...] = (
    *(read_in_a_job, read_between_jobs, written_between_jobs, sent_by_the_kernel, read_in_a_child),
)
