"""The order that an observed run wrote, read by a managed one."""

import json
from pathlib import Path

import pytest
from torch import nn

from tierline_torch.arenas.contents import arrange
from tierline_torch.arenas.selection import Layer, Pinned, Selection
from tierline_torch.errors import TierlineError
from tierline_torch.learning.learned import LearnedOrders, as_record
from tierline_torch.tensors.weights import Weight, collect


def weights_of(*sizes: int) -> list[Weight]:
    model = nn.ModuleList([nn.Linear(size, size) for size in sizes])
    return collect(model.named_modules(), "cpu")


CHOSEN = Selection(
    layers=(Layer(None, (5, 1)), Layer(None, (2,))),
    pinned=(Pinned("a reason", (0, 4)), Pinned("b reason", (3,))),
    launches=((1, 5), (5,), (2,)),
    stays=(Pinned("c reason", (6, 7)),),
)


@pytest.fixture
def learned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LearnedOrders:
    contents = arrange(weights_of(3, 4, 5, 2), CHOSEN, {})
    path = tmp_path / "observed"
    path.write_text('{"output": {}}\n' + json.dumps(as_record(contents, {}, 77)) + "\n")
    monkeypatch.setenv("TIERLINE_LEARNED", str(path))
    return LearnedOrders.of_this_process()


def test_what_was_written_is_read_back(learned: LearnedOrders) -> None:
    assert learned.of(weights_of(3, 4, 5, 2), {}) == (CHOSEN, 77)


def test_it_holds_for_weights_in_another_order(learned: LearnedOrders) -> None:
    weights = weights_of(3, 4, 5, 2)
    found = learned.of(weights[::-1], {})
    assert found is not None
    assert found[0].launches == ((6, 2), (2,), (5,))


def test_it_is_for_those_weights_only(learned: LearnedOrders) -> None:
    assert learned.of(weights_of(3, 4, 6, 2), {}) is None
    assert learned.of(weights_of(3, 4, 5), {}) is None


def test_a_line_that_was_not_finished_is_left_out(learned: LearnedOrders, tmp_path: Path) -> None:
    with (tmp_path / "observed").open("a") as file:
        file.write('{"output": {"inp')
    assert LearnedOrders.of_this_process().of(weights_of(3, 4, 5, 2), {}) == (CHOSEN, 77)


def test_nothing_was_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TIERLINE_LEARNED", raising=False)
    assert LearnedOrders.of_this_process().of(weights_of(3), {}) is None


def test_a_file_that_no_run_wrote_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "observed"
    path.write_text('{"order": {}}\n')
    monkeypatch.setenv("TIERLINE_LEARNED", str(path))
    with pytest.raises(TierlineError, match="could not read the learned order in TIERLINE_LEARNED"):
        LearnedOrders.of_this_process()


def gated(model: nn.Module) -> tuple[list[Weight], dict[int, str]]:
    names = {id(module): name for name, module in model.named_modules()}
    return collect(model.named_modules(), "cpu"), names


def test_gated_modules_are_found_again_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (nn.ModuleList([nn.Linear(3, 3), nn.Linear(4, 4)]) for _ in range(2))
    weights, names = gated(first)
    layers = (Layer(id(first[1]), (2, 3)), Layer(id(first[0]), (0, 1)))
    contents = arrange(weights, Selection(layers, ()), names)
    path = tmp_path / "observed"
    path.write_text(json.dumps(as_record(contents, names, 5)) + "\n")
    monkeypatch.setenv("TIERLINE_LEARNED", str(path))
    weights, names = gated(second)
    found = LearnedOrders.of_this_process().of(weights, names)
    assert found is not None
    assert [layer.module for layer in found[0].layers] == [id(second[1]), id(second[0])]
    ambiguous = {**names, id(first): "0"}
    assert LearnedOrders.of_this_process().of(weights, ambiguous) is None
