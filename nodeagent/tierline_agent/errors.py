"""The agent's exceptions, in one small tree.

    AgentError
    ├── ConfigError          the configuration file, or an argument of the administrator, is wrong
    ├── AlreadyRunning       another agent holds this run directory
    ├── QuotaExceeded        the request is beyond what admission granted; asking again is useless
    ├── NotAdmitted          nobody registered what the request names
    ├── DescriptorRefused    an offered descriptor is not the memory it claims to be
    ├── LinkClosed           the link was shut down, or its queue is full; the transfer did not run
    ├── StreamFailed         a stream could not put right bytes in place; its job is revoked
    └── ConnectionViolation  a client broke the protocol; its connection (alone) is closed
        └── NothingToOffer   it offers back what it was not lent

Errors of the operating system and of the tiers are translated where they become a message to a
client (`sessions.replies`), and chained. What stays an OSError inside is an I/O error.
"""

# ruff: noqa: N818 - the names say what is the case; `QuotaExceeded` says more than QuotaError

from __future__ import annotations


class AgentError(Exception):
    """Root of what the agent raises itself. The message is a sentence fit for a user."""


class ConfigError(AgentError):
    """A setting or a registration is unknown, out of range or contradicts another one."""


class AlreadyRunning(AgentError):
    """Another agent serves this run directory."""


class QuotaExceeded(AgentError):
    """More was asked for than the plan or the fast memory holds."""


class NotAdmitted(AgentError):
    """The request names something that was never registered, stored or granted."""


class DescriptorRefused(AgentError):
    """A descriptor from a client fails the checks of size, seals or identity."""


class LinkClosed(AgentError):
    """The link does not take transfers: it is shut down or its queue is full."""


class StreamFailed(AgentError):
    """A streamed extent could not be read, or not verified."""

    def __init__(self, message: str, *, corrupt: bool) -> None:
        super().__init__(message)
        self.corrupt = corrupt
        """True if the stored bytes do not match their digest, False for an I/O error."""


class ConnectionViolation(AgentError):
    """A client sent what the protocol does not allow at this point."""

    def __init__(self, message: str, *, out_of_order: bool = False) -> None:
        super().__init__(message)
        self.out_of_order = out_of_order
        """True if the message was well formed but not allowed in this state."""


class NothingToOffer(ConnectionViolation):
    """A client sent descriptors, and no earlier agent lent it anything."""
