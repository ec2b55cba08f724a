"""How failures become ERROR messages: one code and one sentence each.

What is nobody's fault but the agent's becomes INTERNAL, with the traceback in the log and none of
it in the message.
"""

from __future__ import annotations

import logging

from tierline_agent.errors import (
    ConnectionViolation,
    DescriptorRefused,
    LinkClosed,
    NotAdmitted,
    QuotaExceeded,
)
from tierline_agent.tiers import CorruptExtent, NoSpace, TierError, UnknownExtent
from tierline_agent.transport.protocol import Error, ErrorCode, ProtocolError

_log = logging.getLogger(__name__)
_REASON_BYTES = 239

_CODES: tuple[tuple[type[BaseException], ErrorCode], ...] = (
    (QuotaExceeded, ErrorCode.QUOTA),
    (NotAdmitted, ErrorCode.NOT_ADMITTED),
    (DescriptorRefused, ErrorCode.NOT_ADMITTED),
    (UnknownExtent, ErrorCode.NOT_ADMITTED),
    (NoSpace, ErrorCode.NO_SPACE),
    (CorruptExtent, ErrorCode.CORRUPT),
    (TierError, ErrorCode.IO),
    (LinkClosed, ErrorCode.IO),
    (OSError, ErrorCode.IO),
)


def error_for(failure: BaseException) -> Error:
    """The message that tells a client of a failure."""
    return Error(code=_code_of(failure), reason=_fit(str(failure)))


def _code_of(failure: BaseException) -> ErrorCode:
    if isinstance(failure, ProtocolError):
        return failure.code
    if isinstance(failure, ConnectionViolation):
        return ErrorCode.OUT_OF_ORDER if failure.out_of_order else ErrorCode.MALFORMED
    for kind, code in _CODES:
        if isinstance(failure, kind):
            return code
    return ErrorCode.INTERNAL


def internal_error(failure: BaseException) -> Error:
    """Log an unexpected failure; the client learns only that there was one."""
    _log.error("a request failed unexpectedly", exc_info=failure)
    return Error(
        code=ErrorCode.INTERNAL, reason="the agent failed at this request; its log says why"
    )


def is_expected(failure: BaseException) -> bool:
    """Whether a failure is one that clients are told about in words."""
    return isinstance(failure, (ProtocolError, ConnectionViolation)) or any(
        isinstance(failure, kind) for kind, _ in _CODES
    )


def _fit(text: str) -> str:
    raw = text.replace("\0", "").encode()
    if len(raw) <= _REASON_BYTES:
        return raw.decode()
    return raw[: _REASON_BYTES - 3].decode(errors="ignore") + "..."
