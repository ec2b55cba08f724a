"""What stands in a table can be read on any screen."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from rich.table import Table

from tierline_cli.reporting.narrow import Fitted


def shown(columns: int) -> str:
    table = Table(title="what fits", header_style="bold")
    table.add_column("task")
    for name in ("resident", "workspace", "response"):
        table.add_column(name, justify="right")
    for task in ("left", "right"):
        table.add_row(task, "1,024 MiB", "16 MiB", "1.25 s")
    console = Console(file=io.StringIO(), width=columns)
    console.print(Fitted(table))
    file = console.file
    assert isinstance(file, io.StringIO)
    return file.getvalue()


@pytest.mark.parametrize("columns", [24, 30, 40, 80])
def test_nothing_is_cut(columns: int) -> None:
    text = shown(columns)
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= columns
    for word in ("what fits", "left", "right", "resident", "workspace", "1,024 MiB", "1.25 s"):
        assert word in text


def test_a_row_is_a_block_where_the_table_is_wider_than_the_screen() -> None:
    block = [line.split() for line in shown(40).splitlines()]
    assert block[1:5] == [
        ["task", "left"],
        ["resident", "1,024", "MiB"],
        ["workspace", "16", "MiB"],
        ["response", "1.25", "s"],
    ]
    assert "task" in shown(80).splitlines()[2]
