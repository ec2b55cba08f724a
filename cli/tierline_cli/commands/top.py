"""`tierline top`: what a running agent does, live."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import yaml
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table

from tierline_cli.local.admin_client import AdminClient
from tierline_cli.reporting.live import memory_lines, notice_lines, shown_size, shown_time
from tierline_cli.reporting.narrow import Fitted


@click.command(name="top")
@click.option(
    "--run-dir",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("/run/tierline"),
    show_default=True,
    help="The agent's run_dir.",
)
@click.option("--once", is_flag=True, help="Print the state once.")
@click.option("--node", "as_node", is_flag=True, help="Print the agent's MemNode as YAML and end.")
@click.option(
    "--interval",
    type=click.FloatRange(min=0.1),
    default=1.0,
    show_default=True,
    help="Seconds between two looks.",
)
def command(run_dir: Path, once: bool, as_node: bool, interval: float) -> None:
    """Show the tasks, tiers and links of a running agent; Ctrl-C ends."""
    with AdminClient(run_dir / "admin.sock") as admin:
        if as_node:
            click.echo(yaml.safe_dump(admin.call("node")["node"], sort_keys=False), nl=False)
            return
        if once:
            Console().print(_screen(admin.call("snapshot")["snapshot"]))
            return
        with Live(refresh_per_second=4) as live:
            while True:
                live.update(_screen(admin.call("snapshot")["snapshot"]))
                time.sleep(interval)


def _screen(snapshot: Mapping[str, Any]) -> Group:
    table = Table(header_style="bold")
    table.add_column("task")
    for column in ("state", "jobs", "misses", "worst", "bound", "streamed", "stored"):
        table.add_column(column, justify="right")
    for task in snapshot["tasks"]:
        table.add_row(
            task["name"],
            "ready" if task["ready"] else "loading" if task["clients"] else "waiting",
            str(task["jobs"]),
            str(task["misses"]),
            shown_time(task["response_worst_ns"] / 1e9),
            shown_time(task["predicted_response_s"]),
            shown_size(task["streamed_bytes"]),
            shown_size(task["stored_bytes"]),
        )
    return Group(Fitted(table), memory_lines(snapshot), notice_lines(snapshot))
