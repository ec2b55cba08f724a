"""A thread of the program's own saves weights, or writes them, while jobs run and weights move.

Nothing else of the program may write these weights: what is saved has one right answer.
"""

from __future__ import annotations

from tests.programs.text import Piece, Text

_SAVED = {
    "torch.save": "torch.save(tensor, path)\nfound = torch.load(path).numpy().tobytes()",
    "the older format": "torch.save(tensor, path, _use_new_zipfile_serialization=False)\n"
    "found = torch.load(path).numpy().tobytes()",
    "into memory": "file = io.BytesIO()\ntorch.save(tensor, file)\nfile.seek(0)\n"
    "found = torch.load(file).numpy().tobytes()",
    "tofile": "tensor.numpy().tofile(path)\nfound = path.read_bytes()",
    "file.write": "with open(path, 'wb') as file: file.write(bytes_of(tensor))\n"
    "found = path.read_bytes()",
    "os.write": "with open(path, 'wb', buffering=0) as file:\n"
    "    at = 0\n"
    "    while at < tensor.nbytes: at += os.write(file.fileno(), bytes_of(tensor)[at:])\n"
    "found = path.read_bytes()",
    "a pipe": "ends, got = os.pipe(), []\n"
    "def drain():\n"
    "    while part := os.read(ends[0], 1 << 12): got.append(part)\n"
    "reader = threading.Thread(target=drain)\n"
    "reader.start()\n"
    "at = 0\n"
    "while at < tensor.nbytes: at += os.write(ends[1], bytes_of(tensor)[at:])\n"
    "os.close(ends[1])\nreader.join()\nos.close(ends[0])\n"
    "found = b''.join(got)",
    "a copy": "found = tensor.clone().numpy().tobytes()",
}


def saved_meanwhile(text: Text) -> None:
    """Of the present model, in all ways; the model may be replaced in between."""
    text.add("init", "self.saved = nn.Linear(WIDTH, 2 * WIDTH)")
    text.add("init", "self.right = self.saved.weight.detach().numpy().tobytes()")
    text.add("after", "y = y + self.saved(torch.ones(WIDTH)).mean().to(y.dtype)")
    ways = "\n".join(
        f"def way_{at}(tensor, path):\n    "
        + "\n    ".join(lines.split("\n"))
        + "\n    return found"
        for at, lines in enumerate(_SAVED.values())
    )
    text.add("ready", "def bytes_of(tensor): return memoryview(tensor.numpy()).cast('B')")
    text.add("ready", ways)
    text.add(
        "ready",
        f"""
        stop, passes, wrong = threading.Event(), [0], []
        def save():
            while not (stop.is_set() and passes[0]):
                for name, way in zip({list(_SAVED)!r}, ({ways_of(len(_SAVED))})):
                    one = model
                    if way(one.saved.weight.detach(), folder / 'saved') != one.right:
                        wrong.append(name)
                passes[0] += 1
        saver = threading.Thread(target=save)
        saver.start()
        """,
    )
    text.add("always", "stop.set()\nsaver.join()\nsay(passes[0] > 0, sorted(set(wrong)))")


def ways_of(count: int) -> str:
    """Names of so many functions."""
    return " ".join(f"way_{at}," for at in range(count))


_TICKS = (
    "array = ticks.detach().numpy()\narray += 1",
    "ticks.data = ticks.data + 1",
)


def written_meanwhile(text: Text) -> None:
    """A thread counts in a weight that jobs read, and of which no output depends."""
    if "models_come_and_go" in text.tags:
        text.tags[-1] = saved_meanwhile.__name__
        saved_meanwhile(text)  # a copy of the model has what was counted by then
        return
    text.add("init", "self.ticks = nn.Parameter(torch.zeros(WIDTH), requires_grad=False)")
    text.add("after", "y = y + (self.ticks.sum() * 0).to(y.dtype)")
    lines = "\n        ".join(text.random.choice(_TICKS).split("\n"))
    text.add(
        "ready",
        f"""
stop, ticks = threading.Event(), model.ticks
def tick():
    for _ in range(500):
        stop.wait(0.0005)
        {lines}
ticker = threading.Thread(target=tick)
ticker.start()
        """,
    )
    text.parts.setdefault("end", []).insert(0, "stop.set()\nticker.join()")
    text.add("always", "stop.set()\nticker.join()\nsay(ticks)")


MEANWHILE: tuple[Piece, ...] = (saved_meanwhile, saved_meanwhile, written_meanwhile)
