"""Waiting for several pieces of work at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable


async def gather_all(work: Iterable[Awaitable[None]]) -> None:
    """Wait for all of `work`, also if some fail, then raise the first failure."""
    outcomes = await asyncio.gather(*work, return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
