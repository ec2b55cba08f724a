"""The console commands until their modules are loaded, which may take seconds.

Invariant: Ctrl-C ends a command with 130 and without a traceback from here on; `errors.run` takes
over. Nothing was made until then, so there is nothing to clean up.
"""

import os
import signal
from typing import NoReturn


def _arm() -> None:
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not ignored, as under nohup
        signal.signal(signal.SIGINT, lambda *_: os._exit(130))


def tierline() -> NoReturn:
    """Run `tierline`."""
    _arm()
    from tierline_cli.main import main  # noqa: PLC0415  # what takes seconds

    main()


def kubectl_tierline() -> NoReturn:
    """Run `kubectl tierline`."""
    _arm()
    from tierline_cli.cluster.plugin import main  # noqa: PLC0415  # what takes seconds

    main()


def kubectl_complete_tierline() -> None:
    """Complete the words of `kubectl tierline`."""
    _arm()
    from tierline_cli.cluster.plugin import complete  # noqa: PLC0415  # what takes seconds

    complete()
