"""Loads the plugin into a process that it serves, and gives it the outermost module calls.

Where a part of it cannot be imported, the plugin stands aside (`serving`). Like that module, this
one runs in every Python, and needs PyTorch only where it loads what does.
"""

from __future__ import annotations

import os

from tierline_torch import serving


def load() -> bool:
    """Hook module calls, and load what runs jobs, so that the first one need not wait for that.

    False if the plugin does not run in this process, which was told then. Raises TierlineError if
    it must.
    """
    if not serving.promised():
        return False
    try:
        from tierline_torch import calls  # noqa: PLC0415  # it needs PyTorch
    except Exception as error:  # whatever an image has done to what is imported
        return serving.cannot_load(error)
    # The hook first: what is loaded after it may compile, and would take the original for good.
    calls.install()
    if not serves():
        calls.remove()
        return False
    if os.environ.get("TIERLINE_TRAINING"):
        from tierline_torch.training import loop  # noqa: PLC0415  # one of the two

        calls.set_outermost(loop.outermost)
    else:
        from tierline_torch import dispatch  # noqa: PLC0415

        calls.set_outermost(dispatch.prepare())
    return True


def serves() -> bool:
    """Whether the plugin runs in this process; if not, that was told. Loads most of it.

    Raises TierlineError if it does not and must.
    """
    if not serving.promised():
        return False
    try:
        import torch  # noqa: F401, PLC0415  # it calls `autoload`, which loads the rest

        import tierline_torch.dispatch  # noqa: F401, PLC0415
    except Exception as error:
        return serving.cannot_load(error)
    return serving.promised()
