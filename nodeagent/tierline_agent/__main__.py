"""`python -m tierline_agent --config FILE`: the node agent in the foreground.

Exit status 0 after a clean stop, 2 for bad settings or a second agent, 1 for a start that failed.
"""

from __future__ import annotations

import argparse
import errno
import gc
import logging
import os
import sys
from pathlib import Path

import uvloop

from tierline_agent.app import run
from tierline_agent.config import load_config
from tierline_agent.errors import AgentError
from tierline_agent.telemetry.logs import log_to
from tierline_agent.tiers import TierError

_log = logging.getLogger("tierline_agent")
_SWITCH_INTERVAL_S = 0.0002
"""A link's worker that computes in Python delays a GRANT by no more (Python's default is 5 ms)."""


def main(arguments: list[str] | None = None) -> int:
    """Run the agent; returns the exit status."""
    parser = argparse.ArgumentParser(prog="tierline_agent", description=__doc__)
    parser.add_argument("--config", type=Path, required=True, help="JSON file of settings")
    options = parser.parse_args(arguments)
    log_to(sys.stderr.fileno())
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    gc.disable()  # until all is there that lives as long as the agent (`app`)
    try:
        config = load_config(options.config)
        uvloop.run(run(config))
    except AgentError as error:
        _log.error("%s", error)
        return 2
    except (TierError, OSError) as error:
        _log.error("cannot start: %s%s", error, _remedy(error))
        return 1
    if any(device.kind == "cuda" for device in config.all_devices):
        # A GPU may stand in the middle of a job's stream, waiting for the client, which the next
        # agent goes on with. It reads pinned memory until the process is gone, so nothing may be
        # unmapped before, as Python does when it ends.
        logging.shutdown()
        os._exit(0)
    return 0


def _remedy(error: Exception) -> str:
    """The remedy, where the error's own words do not say it."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "; free blocks and inodes there (df, df -i), and start the agent again"
    return ""


if __name__ == "__main__":
    sys.exit(main())
