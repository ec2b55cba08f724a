"""Which pods would make room by starting again: told to tasks that wait for what these hold.

A pod that was alone on its device holds more than it would be given with others there, and keeps it
to its end. A task that waits for that memory is told whose pods to start again: the one that holds
most too much if that is enough, else all that hold too much. Pure; it changes no plan.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from tierline_operator.placement.books.book import Ask, Book
from tierline_operator.placement.books.ledger import Ledger
from tierline_operator.placement.books.seats import Seat
from tierline_operator.planning.answer import Admitted
from tierline_operator.planning.refusals.reasons import mebibytes
from tierline_operator.planning.request import TaskDemand

Row = tuple[Seat | None, TaskDemand]
"""A demand, and the seat that it is made for if there is one already."""


def relief(book: Book, ledger: Ledger, rows: Sequence[Row], fresh: Ask) -> str:
    """The end of a sentence about `rows`, which do not hold together; "" if nobody could help.

    `fresh` says what the next pod of a seat would ask.
    """
    restarted: dict[int, TaskDemand] = {}
    for index, (seat, demand) in enumerate(rows):
        asked = fresh(seat, ledger) if seat is not None and demand.held is not None else None
        if isinstance(asked, TaskDemand):
            restarted[index] = asked
    answer = _without(book, ledger, rows, restarted, restarted) if restarted else None
    if answer is None:
        return ""
    too_much = {index: _resident(rows[index]) - _given(answer, index) for index in restarted}
    ranked = sorted(restarted, key=lambda index: (-too_much[index], index))
    enough = ranked[:1]
    if _without(book, ledger, rows, restarted, enough) is None:
        enough = [index for index in ranked if too_much[index] > 0]
        if _without(book, ledger, rows, restarted, enough) is None:
            enough = ranked
    names = sorted({str(seat.task) for index in enough if (seat := rows[index][0]) is not None})
    size = sum(too_much[index] for index in enough)
    more = f", which hold {mebibytes(size)} more than they would then get" if size > 0 else ""
    return f"it would hold if pods of {', '.join(names)} started again{more}: delete them"


def _without(
    book: Book,
    ledger: Ledger,
    rows: Sequence[Row],
    restarted: Mapping[int, TaskDemand],
    freed: Collection[int],
) -> Admitted | None:
    """The answer if the pods of these rows started again."""
    demands = [restarted[i] if i in freed else demand for i, (_, demand) in enumerate(rows)]
    return book.try_set(ledger, demands)[0]


def _resident(row: Row) -> int:
    held = row[1].held
    return len(held.resident_extents) * held.extent_bytes if held is not None else 0


def _given(answer: Admitted, index: int) -> int:
    plan = answer.plans[index]
    return len(plan.resident_extents) * plan.extent_bytes
