"""The client library in Python: a typed binding of libtierline.so.

`Client` speaks with the node agent; `words` waits on flag words; `library_path` says which library
is loaded. `afterwards` gives back what was taken, whatever interrupts a program; `elsewhere` calls
in a thread in which nothing of the program's runs.
"""

from tierline_client.afterwards import GiveBack, afterwards, enter_of, exit_of
from tierline_client.client import (
    Client,
    Device,
    LayerProfile,
    NoticeKind,
    Statistics,
    Terms,
)
from tierline_client.elsewhere import elsewhere
from tierline_client.errors import ClientError, ErrorCode
from tierline_client.library import library_path

__all__ = [
    "Client",
    "ClientError",
    "Device",
    "ErrorCode",
    "GiveBack",
    "LayerProfile",
    "NoticeKind",
    "Statistics",
    "Terms",
    "afterwards",
    "elsewhere",
    "enter_of",
    "exit_of",
    "library_path",
]
