"""The client library in Python: a typed binding of libtierline.so.

`Client` speaks with the node agent; `words` waits on flag words; `library_path` says which library
is loaded.
"""

from tierline_client.client import (
    Client,
    Device,
    JobStats,
    LayerProfile,
    NoticeKind,
    Statistics,
    Terms,
)
from tierline_client.errors import ClientError, ErrorCode
from tierline_client.library import library_path

__all__ = [
    "Client",
    "ClientError",
    "Device",
    "ErrorCode",
    "JobStats",
    "LayerProfile",
    "NoticeKind",
    "Statistics",
    "Terms",
    "library_path",
]
