"""What code is told of a capture. Captures themselves: tests/gpu/checks/captures.py."""

import threading
from types import FunctionType

import pytest
import torch

from tierline_torch.capture.eager_path import eager_path


@pytest.fixture
def capturing(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch says that a stream is being captured."""
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)


@pytest.mark.usefixtures("capturing")
def test_only_this_threads_code_outside_pytorch_is_not_told() -> None:
    told = []

    def ask() -> bool:
        return torch.cuda.is_current_stream_capturing()

    within_torch = FunctionType(ask.__code__, {"__name__": "torch.nn.modules", "torch": torch})
    with eager_path():
        assert not ask()
        assert within_torch()
        other = threading.Thread(target=lambda: told.append(ask()))
        other.start()
        other.join()
    assert told == [True]
    assert ask()


@pytest.mark.usefixtures("capturing")
def test_everybody_is_told_again_when_the_capture_failed() -> None:
    with pytest.raises(RuntimeError, match="capture"), eager_path():
        raise RuntimeError("the capture was invalidated")
    assert torch.cuda.is_current_stream_capturing()
