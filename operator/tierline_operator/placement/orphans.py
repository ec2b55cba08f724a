"""Claims whose MemTask is gone, while their pods run: what they take, as is noted in them. Pure.

The operator keeps a MemTask as long as a pod of it holds a claim, and nobody but an administrator
can have it otherwise. Where it is gone all the same, the claim's notes say what its pod holds (the
plan) and by which terms it runs; so it is counted as if its task were being deleted. A claim
without such notes may take anything, and closes its device (books/ledger.py).
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Final

from tierline_api.objects.memtask import MemTask, MemTaskSpec
from tierline_api.objects.terms import Terms
from tierline_api.schema.metadata import ObjectMeta
from tierline_operator.placement.books.seats import Claim
from tierline_operator.placement.entry import Entry

_GONE: Final = datetime(1970, 1, 1, tzinfo=UTC)


def by_notes(claim: Claim) -> Entry | None:
    """The entry of the task that a claim names, by the claim's own terms; None if it has none."""
    try:
        terms = Terms.from_stored(json.loads(claim.terms)).to_api()
        task = MemTask.of_stored(
            metadata=ObjectMeta(
                name=claim.task, namespace=claim.key.namespace, deletion_timestamp=_GONE
            ),
            spec=MemTaskSpec.from_stored({**terms, "replicas": 0}),
        )
    except (ValueError, RecursionError):  # of another release, or nonsense
        return None
    return Entry(claim.task_key, task, granted=task.spec, orphaned=True)
