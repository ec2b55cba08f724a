"""Tables that stay readable where they are wider than the screen: then one row is one block."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

_ANY: Final = 10_000
"""Columns of a screen on which every table fits."""


@dataclass(frozen=True)
class Fitted:
    """A table as it is where it fits; else block by block, a line for each column of a row."""

    table: Table

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield one or the other."""
        wide = options.update(width=_ANY)
        if self.table.__rich_measure__(console, wide).maximum <= options.max_width:
            yield self.table
            return
        if self.table.title:
            yield Text(str(self.table.title), style="italic")
        first, *others = self.table.columns
        names = [str(column.header) for column in others]
        for heading, *values in zip(first.cells, *(one.cells for one in others), strict=True):
            yield Text(f"{first.header} {heading}", style="bold")
            block = Table.grid(padding=(0, 1, 0, 0))
            for name, value in zip(names, values, strict=True):
                block.add_row(f"  {name}", value)
            yield block
