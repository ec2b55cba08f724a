"""Types of command-line options that manifests use as well."""

from pathlib import Path

import click

from tierline_api.device import DeviceKind
from tierline_api.margins import MARGINS
from tierline_api.quantities import parse_quantity
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


QUANTITY = Quantity()


margin_option = click.option(
    "--margin",
    type=click.FloatRange(min=1),
    help="Plan with times this much longer, and links this much slower, than measured; "
    f"by default {' and '.join(f'{MARGINS[kind]} on {kind.value}' for kind in DeviceKind)}.",
)
files_argument = click.argument(
    "files", nargs=-1, required=True, type=click.Path(path_type=Path, allow_dash=True)
)
node_option = click.option(
    "--node", type=click.Path(path_type=Path), help="File with the MemNode, if not in FILES."
)
gpu_option = click.option(
    "--gpu",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Number of the GPU (by bus), for tasks whose spec.device.kind is cuda.",
)
scheduling_option = click.option(
    "--scheduling",
    type=click.Choice([way.value for way in Scheduling]),
    callback=lambda _context, _option, value: None if value is None else Scheduling(value),
    help="When jobs give the device away, supported or not; as admission chooses if absent.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
