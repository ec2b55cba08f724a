"""`tierline agent`: the node agent in the foreground."""

import os
import sys
from pathlib import Path

import click


@click.command(name="agent")
@click.option(
    "--config",
    required=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="JSON file with the device, the tiers and the folders of the agent.",
)
def command(config: Path) -> None:
    """Run the node agent: it owns the device's memory, the tiers, the links and the leases."""
    # exec, so that the process is the agent alone: its signals, its descriptors, its memory
    os.execv(sys.executable, [sys.executable, "-m", "tierline_agent", "--config", str(config)])  # noqa: S606 - a fixed program, no shell
