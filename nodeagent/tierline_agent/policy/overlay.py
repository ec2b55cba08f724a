"""Which task's content lies in the workspace that the tasks of one trust domain share. Pure.

Jobs on a device are exclusive, so one set of extents serves the workspaces of all tasks of a
domain. A task whose workspace is preserved has its content either in the extents, or in a backup
of its own, or has none yet; one whose workspace is discarded has content only while its job runs.

Invariant: what a preserving task's next job finds is what its last job left. So before another
task's job is granted, the content in the extents is saved if its owner preserves it, and the other
one's own content is restored, and nothing is moved when a task follows itself.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Moves:
    """Moves before a job; the bytes are counted from the start of the workspace."""

    save: int | None
    """The task whose content is saved first."""
    save_bytes: int
    restore_bytes: int
    """Of the task whose job it is."""


@dataclass
class _Tenant:
    size_bytes: int
    preserve: bool
    reach_bytes: int = 0
    saved: bool = False


class Overlay:
    """The tasks of one domain, by the tokens of their clients."""

    def __init__(self) -> None:
        self._tenants: dict[int, _Tenant] = {}
        self._holder: int | None = None
        self._entered = False

    @property
    def size_bytes(self) -> int:
        """The largest workspace."""
        return max((tenant.size_bytes for tenant in self._tenants.values()), default=0)

    def __contains__(self, token: int) -> bool:
        """Whether this task shares the extents."""
        return token in self._tenants

    def join(self, token: int, size_bytes: int, *, preserve: bool) -> None:
        """A task shares the extents from now on."""
        self._tenants[token] = _Tenant(size_bytes, preserve)

    def rejoin(
        self, token: int, size_bytes: int, reach_bytes: int, *, preserve: bool, saved: bool
    ) -> bool:
        """A task from before the restart is back, with content that is saved, or in the extents.

        False, and nothing is changed, if it says that its content is in the extents, and another
        task has been there since.
        """
        reach_bytes = min(reach_bytes, size_bytes) if preserve else 0
        inside = reach_bytes > 0 and not saved
        if inside and (self._holder is not None or self._entered):
            return False
        self._tenants[token] = _Tenant(size_bytes, preserve, reach_bytes, saved)
        if inside:
            self._holder = token
        return True

    def leave(self, token: int) -> None:
        """A task has gone, and its content with it."""
        self._tenants.pop(token, None)
        if self._holder == token:
            self._holder = None

    def moves(self, token: int) -> Moves:
        """The moves before this task's job."""
        if self._holder == token:
            return Moves(None, 0, 0)
        holder = self._tenants.get(self._holder) if self._holder is not None else None
        saving = holder is not None and holder.preserve and holder.reach_bytes > 0
        own = self._tenants[token]
        return Moves(
            save=self._holder if saving else None,
            save_bytes=holder.reach_bytes if holder is not None and saving else 0,
            restore_bytes=own.reach_bytes if own.saved else 0,
        )

    def saved(self, token: int) -> None:
        """The content of this task is in its backup; the extents may be overwritten."""
        self._tenants[token].saved = True
        self._holder = None

    def entered(self, token: int) -> None:
        """This task's job is granted: until it says otherwise, its content may be anywhere."""
        tenant = self._tenants[token]
        tenant.reach_bytes = tenant.size_bytes
        tenant.saved = False
        self._holder = token
        self._entered = True

    def ended(self, token: int, reach_bytes: int) -> None:
        """Its job has ended and left content in the first `reach_bytes`."""
        tenant = self._tenants.get(token)
        if tenant is not None:
            tenant.reach_bytes = min(reach_bytes, tenant.size_bytes)
