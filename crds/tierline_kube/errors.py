"""What goes wrong towards the API server, in one small tree.

KubeError
├── Refused          it refused the request: its status code, reason and message
│   ├── Conflict     the object changed since it was read, or exists already: read it again
│   ├── NotFound     there is no such object
│   └── Ending       its namespace is being deleted, and takes nothing new
├── Unreachable      it did not answer, or not now: try again later
└── NoCluster        nothing says where it is
"""

# ruff: noqa: N818 - the names say what is the case; two of them are the API's own words

from __future__ import annotations


class KubeError(Exception):
    """Root of the tree. The message is a sentence that says what was asked."""


class Refused(KubeError):
    """The API server refused a request for good."""

    def __init__(self, asked: str, status: int, reason: str, message: str) -> None:
        super().__init__(f"{asked}: {status} {reason}: {message}")
        self.status, self.reason, self.message = status, reason, message


class Conflict(Refused):
    """The object changed since it was read, or exists already."""


class NotFound(Refused):
    """There is no such object."""


class Ending(Refused):
    """Its namespace is being deleted, and takes nothing new: nobody has to do anything."""


class Unreachable(KubeError):
    """The API server did not answer, or cannot now; the request may or may not be carried out."""


class NoCluster(KubeError):
    """Nothing says where the API server is."""
