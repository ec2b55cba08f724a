"""Types of command-line options that manifests use as well."""

import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from tierline_api.devices.device import DeviceKind
from tierline_api.devices.extents import EXTENT_SIZES, USUAL_EXTENT_BYTES
from tierline_api.devices.margins import MARGINS
from tierline_api.objects.memtask import MemTask
from tierline_api.objects.plan import Tier
from tierline_api.schema.quantities import format_quantity, parse_quantity
from tierline_cli.errors import EXIT_BAD_INPUT, CommandError
from tierline_operator.admission.preemption import Scheduling


class Quantity(click.ParamType[int]):
    """Bytes as Kubernetes users write them, such as 256Mi."""

    name = "quantity"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        """Return bytes; anything else is a usage error that names the option."""
        if isinstance(value, int):
            return value
        try:
            size = parse_quantity(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)
        if size <= 0:
            self.fail(f"{value} is no size; write more than 0 bytes, such as 256Mi", param, ctx)
        return size


class ExtentSize(Quantity):
    """A size that extents can have."""

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        """Return bytes; anything else is a usage error that names the option."""
        size = super().convert(value, param, ctx)
        if size not in EXTENT_SIZES:
            least, most = format_quantity(EXTENT_SIZES[0]), format_quantity(EXTENT_SIZES[-1])
            self.fail(f"{value} is no power of two from {least} to {most}", param, ctx)
        return size


class FiniteRange(click.FloatRange):
    """A number in a range, neither infinite nor none at all."""

    def convert(
        self, value: float, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return the number; anything else is a usage error that names the option."""
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value} is no finite number", param, ctx)
        return number


def _told_apart(
    path: Path, param: click.Parameter | None, ctx: click.Context | None, *, written: bool
) -> None:
    """Note that the command reads or writes `path`.

    Raises:
        BadParameter: it writes what it reads, or one file twice.
    """
    if ctx is None or param is None or str(path) == "-":
        return
    hint = param.get_error_hint(ctx)
    known: dict[Path, tuple[str, bool]] = ctx.meta.setdefault(f"{__name__}.files", {})
    other, other_written = known.setdefault(path.resolve(), (hint, written))
    if other != hint and (written or other_written):
        raise click.BadParameter(
            f"{path} is {other} as well, and would be overwritten; name another file", ctx, param
        )


class InputFile(click.Path):
    """A file to be read; that it is no output is seen at the beginning."""

    def convert(
        self,
        value: str | os.PathLike[str],
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> str | bytes | os.PathLike[str]:
        """Return the path; one that is to be written is a usage error that names both options."""
        path = Path(os.fsdecode(super().convert(value, param, ctx)))
        _told_apart(path, param, ctx, written=False)
        return path


class OutputFile(click.Path):
    """A file to be written at the end; whether it can be is seen at the beginning."""

    def __init__(self, suffixes: tuple[str, ...] = (), *, allow_dash: bool = False) -> None:
        """Have its name end in one of `suffixes`, if there are any."""
        super().__init__(dir_okay=False, writable=True, allow_dash=allow_dash, path_type=Path)
        self._suffixes = suffixes

    def convert(
        self,
        value: str | os.PathLike[str],
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> str | bytes | os.PathLike[str]:
        """Return the path; one that cannot be written is a usage error that names the option."""
        path = Path(os.fsdecode(super().convert(value, param, ctx)))
        if self.allow_dash and str(path) == "-":
            return path
        if self._suffixes and path.suffix not in self._suffixes:
            self.fail(f"{path} does not end in {', '.join(self._suffixes)}", param, ctx)
        if not path.parent.is_dir():
            self.fail(f"{path.parent} is no folder; make it, or name another one", param, ctx)
        if not path.exists() and not os.access(path.parent, os.W_OK):
            self.fail(f"nothing can be written in {path.parent}; name another folder", param, ctx)
        _told_apart(path, param, ctx, written=True)
        return path


QUANTITY = Quantity()
EXTENT_SIZE = ExtentSize()
PICTURES: Final = (".png", ".svg", ".pdf")
_MOST_MARGIN: Final = 100
_Command = TypeVar("_Command", bound=Callable[..., Any])


margin_option = click.option(
    "--margin",
    type=FiniteRange(min=1, max=_MOST_MARGIN),
    help="Plan with times this much longer, and links this much slower, than measured; "
    f"by default {' and '.join(f'{MARGINS[kind]} on {kind.value}' for kind in DeviceKind)}, "
    "and in a run more where times vary.",
)
files_argument = click.argument(
    "files", nargs=-1, required=True, type=InputFile(path_type=Path, allow_dash=True)
)
node_option = click.option(
    "--node", type=InputFile(path_type=Path), help="File with the MemNode, if not in FILES."
)
gpu_option = click.option(
    "--gpu",
    type=click.IntRange(min=0),
    help="Number of the GPU (by bus), for tasks whose spec.device.kind is cuda; 0 if absent.",
)
scheduling_option = click.option(
    "--scheduling",
    type=click.Choice([way.value for way in Scheduling]),
    callback=lambda _context, _option, value: None if value is None else Scheduling(value),
    help="When jobs give the device away, supported or not; as admission chooses if absent.",
)
_MACHINE: Final = (
    click.option(
        "--fast-memory",
        type=QUANTITY,
        default="512Mi",
        show_default=True,
        help="Fast memory that all tasks share.",
    ),
    click.option(
        "--nvme",
        type=InputFile(path_type=Path),
        help="File or block device for the tier nvme; a temporary file if absent.",
    ),
    click.option(
        "--pmem",
        type=InputFile(path_type=Path),
        help="/dev/dax0.0 or a file for the tier pmem.",
    ),
    click.option(
        "--extent-size",
        type=EXTENT_SIZE,
        help="Size of an extent, a power of two; "
        f"{format_quantity(USUAL_EXTENT_BYTES['cpu'])} on a CPU and "
        f"{format_quantity(USUAL_EXTENT_BYTES['cuda'])} on a GPU if absent.",
    ),
    gpu_option,
)


def machine_options(command: _Command) -> _Command:
    """Add the options that say what of this machine programs may use."""
    for option in reversed(_MACHINE):
        command = option(command)
    return command


def paths_of(nvme: Path | None, pmem: Path | None) -> dict[Tier, Path]:
    """The tiers whose place was named."""
    given = {Tier.NVME: nvme, Tier.PMEM: pmem}
    return {tier: path for tier, path in given.items() if path is not None}


def gpu_for(tasks: Sequence[MemTask], gpu: int | None) -> int:
    """The number of the GPU for these tasks.

    Raises:
        CommandError: one is given, and none of the tasks runs on a GPU.
    """
    if gpu is not None and all(task.spec.device.kind is not DeviceKind.CUDA for task in tasks):
        raise CommandError(
            f"--gpu {gpu}: none of the tasks runs on a GPU; leave the option out, or write cuda in "
            "spec.device.kind",
            EXIT_BAD_INPUT,
        )
    return gpu or 0


json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
