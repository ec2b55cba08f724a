"""The text of a program as it grows: pieces add lines to its parts, `written` puts them together.

A program is ordinary PyTorch. It is given three names: `given(i, *shape)`, the same random tensor
for the same arguments; `say(*values)`, which keeps what the program can see; and `folder`, a path
of its own. Everything else in it is its own text, so a seed and this text are a whole report.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from textwrap import dedent, indent


@dataclass
class Text:
    """A program's parts. `random` is its only source of choices."""

    random: Random
    width: int
    jobs: int
    shape: str = "(4, WIDTH)"
    """Of a request."""
    mode: str = "torch.inference_mode()"
    call: str = "model(ARGUMENTS)"
    arguments: list[str] = field(default_factory=lambda: ["x"])
    output: str = "y"
    parameters: list[str] = field(default_factory=lambda: ["x"])
    """Of `forward`."""
    unordered: bool = False
    """Requests run at the same time: nothing may depend on their order."""
    tags: list[str] = field(default_factory=list)
    parts: dict[str, list[str]] = field(default_factory=dict)

    def add(self, part: str, lines: str) -> None:
        """Add lines to one of PARTS."""
        lines = dedent(lines).strip("\n")
        if part == "always":
            lines = f"with contextlib.suppress(NameError):\n{indent(lines, '    ')}"
        self.parts.setdefault(part, []).append(lines)

    def chance(self, share: float) -> bool:
        return self.random.random() < share

    def some_job(self) -> int:
        """Return the number of a job, more often one in the middle than the first."""
        return self.random.choice([0, 1, 2, 2, 3, 3, 4, 5, self.jobs - 1]) % self.jobs


Piece = Callable[[Text], None]

PARTS = {
    "top": 0,  # before the model's class
    "init": 8,  # in its __init__, which makes `self.body`
    "before": 8,  # in forward, before the body; the request is `x`
    "after": 8,  # in forward, after the body; its output is `y`
    "ready": 0,  # the model exists
    "asked": 4,  # before job i
    "inside": 8,  # in the grad mode, before the call
    "told": 4,  # after job i; the answer is `y`, None if it raised
    "end": 0,
    "always": 4,  # however it ends, if its names exist
}
"""Where lines go, and how far they are indented."""

_FRAME = """\
WIDTH, JOBS = {width}, {jobs}
{top}
class Net(nn.Module):
    def __init__(self):
        super().__init__()
{init}
    def forward({parameters}):
{before}
        y = self.body(x)
{after}
        return {output}
try:
{main}
finally:
    pass
{always}
"""
_MAIN = """\
torch.manual_seed({seed})
model = Net().eval()
{ready}
def request(i):
    y, x = None, given(i, *{shape})
{asked}
    with {mode}:
{inside}
        y = {call}
        say(y)
{told}
    return y
{loop}
{end}
"""
_IMPORTS = "import contextlib, copy, gc, io, itertools, os, queue, threading\nimport torch\n"
_IMPORTS += "import torch.nn.functional as F\nfrom torch import nn\n"


def written(text: Text, seed: int, loop: str) -> str:
    """Return the program."""
    lines = {
        part: indent("\n".join(text.parts.get(part, [])), " " * depth)
        for part, depth in PARTS.items()
    }
    main = _MAIN.format(
        seed=seed,
        shape=text.shape,
        mode=text.mode,
        call=text.call.replace("ARGUMENTS", ", ".join(text.arguments)),
        loop=dedent(loop).strip("\n"),
        **lines,
    )
    body = _FRAME.format(
        width=text.width,
        jobs=text.jobs,
        parameters=", ".join(["self", *text.parameters]),
        output=text.output,
        main=indent(main, "    "),
        **lines,
    )
    kept = [line for line in body.splitlines() if line.strip()]
    # Where it is missing, the programs run that do without.
    imports = _IMPORTS + ("import numpy\n" if "numpy." in body else "")
    return f"# seed {seed}: {' '.join(text.tags)}\n{imports}" + "\n".join(kept) + "\n"
