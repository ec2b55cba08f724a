"""Objects that hold: every plan fulfils every wish, or the refusal names one that cannot be.

What a wish means is worked out here again, from bytes: an object has the extents in which one of
its bytes lies. One that it shares is resident if an object in it must be, and at home with the
first that names a tier.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import pytest
from hypothesis import assume, event, given, settings
from hypothesis import strategies as st
from tests.bench.schedulability.exact import least_memory
from tests.simulation.attack import machine_of
from tests.simulation.engines import run_job

from tierline_api.objects.memprofile import MemProfile
from tierline_api.objects.memtask import MemTask
from tierline_operator.admission.preemption import Scheduling
from tierline_operator.placement.books.holding import misfit
from tierline_operator.planning.answer import Admitted, Infeasible, TaskPlan
from tierline_operator.planning.from_api import QuestionError, demand_of
from tierline_operator.planning.held import held_by
from tierline_operator.planning.homes.placing import placements
from tierline_operator.planning.incremental import admit, settle
from tierline_operator.planning.jobs.pipeline import LinkRate
from tierline_operator.planning.planner import plan, prepare
from tierline_operator.planning.request import DeviceCapacity, TaskDemand, TierCapacity
from tierline_operator.planning.search.residents import Search

EXTENT = 100
Object = dict[str, str]
LLAMA = {
    "embed": 250,
    "layers.0.attn": 300,
    "layers.0.mlp": 300,
    "layers.1.attn": 300,
    "layers.1.mlp": 300,
    "head": 250,
}


@dataclass(frozen=True)
class Asked:
    """A task as it is written."""

    name: str
    layers: tuple[tuple[str, int, bool, float], ...]
    tiers: tuple[str, ...]
    objects: tuple[Object, ...] = ()
    policy: str = "Auto"
    period_ms: int = 100
    workspace: int = 0
    spills: bool = False
    budget: int = 1 << 20

    def but(self, **changes: Any) -> Asked:
        """The same with other fields."""
        return Asked(**{**vars(self), **changes})

    def demand(self) -> TaskDemand:
        """What it asks; raises QuestionError."""
        api = {"apiVersion": "tierline.io/v1alpha1", "metadata": {"name": self.name}}
        swap = {"tiers": self.tiers, "policy": self.policy, "objects": list(self.objects)}
        swap["onBudgetExceeded"] = "Spill" if self.spills else "Fail"
        task = {
            **(api | {"kind": "MemTask"}),
            "spec": {
                "realtime": {"period": f"{self.period_ms}ms"},
                "memory": {"budget": self.budget},
                "swap": swap,
                "device": {"kind": "cpu"},
            },
        }
        layers = [
            {"name": name, "bytes": size, "pinned": pinned, "computeTime": f"{ms}ms"}
            for name, size, pinned, ms in self.layers
        ]
        device = {"kind": "cpu", "product": "x"}
        spec = {"device": device, "layers": layers, "workspace": self.workspace}
        profile = MemProfile.from_api({**(api | {"kind": "MemProfile"}), "spec": spec})
        return demand_of(MemTask.from_api(task), profile, EXTENT)


def llama(*objects: Object, **more: Any) -> Asked:
    """A small model with these objects."""
    layers = tuple((name, size, False, 1.0) for name, size in LLAMA.items())
    fields = {"tiers": ("dram", "pmem"), "objects": objects, **more}
    return Asked("llama", layers, **fields)


def machine(fast: int, **tiers: int) -> DeviceCapacity:
    """A device with such tiers: their links take 1 ms for an extent of pmem, and 0.1 ms else."""
    rates = {"pmem": LinkRate(100e3)}
    sizes = tiers or {"dram": 1 << 20, "pmem": 1 << 20}
    made = {
        name: TierCapacity(size, rates.get(name, LinkRate(1e6))) for name, size in sizes.items()
    }
    return DeviceCapacity(fast, made)


def touched(asked: Asked, name: str) -> set[int]:
    """The extents in which bytes of an object lie."""
    pinned_at = 0
    at = sum(size for _, size, pinned, _ in asked.layers if pinned)
    found: set[int] = set()
    for layer, size, pinned, _ in asked.layers:
        begin = pinned_at if pinned else at
        if pinned:
            pinned_at += size
        else:
            at += size
        if _is_named(name, layer) and size:
            found |= set(range(begin // EXTENT, (begin + size - 1) // EXTENT + 1))
    return found


NAMES = {
    "embed": ["embed"],
    "embed.*": ["embed"],
    "layers.*": ["layers.0.attn", "layers.0.mlp", "layers.1.attn", "layers.1.mlp"],
    "*.mlp": ["layers.0.mlp", "layers.1.mlp"],
    "layers.?.attn": ["layers.0.attn", "layers.1.attn"],
    "h??d": ["head"],
    "*": [*LLAMA, "bias"],
    "layer": [],
    "bias": ["bias"],
}


def _is_named(name: str, layer: str) -> bool:
    return layer in NAMES[name]


def check(asked: Asked, got: TaskPlan) -> None:
    """Every wish is fulfilled, to the letter."""
    homes = [run.tier for run in got.homes for _ in range(run.extents)]
    resident = set(got.resident_extents)
    pinned = sum(size for _, size, pinned, _ in asked.layers if pinned)
    must = set(range(-(-pinned // EXTENT)))
    for one in asked.objects:
        if one.get("policy") == "Resident":
            must |= touched(asked, one["name"])
    taken: dict[int, str] = {}
    assert must <= resident
    for one in asked.objects:
        own = touched(asked, one["name"])
        if one.get("policy") == "Stream":
            assert own - must
            assert not (own - must) & resident
        if "tier" in one:
            here = {
                extent for extent in own if taken.setdefault(extent, one["tier"]) == one["tier"]
            }
            assert here
            assert {homes[extent] for extent in here} == {one["tier"]}


def test_objects_lie_where_they_are_wished_and_stream_or_stay() -> None:
    asked = llama(
        {"name": "embed.*", "policy": "Stream", "tier": "pmem"},
        {"name": "h??d", "policy": "Resident"},
    )
    answer = plan([asked.demand()], machine(5000))
    assert isinstance(answer, Admitted)
    (got,) = answer.plans
    check(asked, got)
    assert got.ring_extents == 3
    assert set(range(17)) - set(got.resident_extents) == {0, 1, 2}, "there is room for the rest"


@pytest.mark.parametrize(
    ("objects", "said"),
    [
        ([{"name": "q*", "tier": "dram"}], "'q*' matches no layer; its profile has embed, "),
        (
            [{"name": "layers.2.mlp", "tier": "dram"}],
            "did you mean layers.1.mlp or layers.0.mlp or layers.1.attn?",
        ),
        (
            [{"name": "layers.*", "policy": "Stream"}, {"name": "*.mlp", "policy": "Resident"}],
            "'layers.*' and '*.mlp' contradict each other for the layer layers.0.mlp: Stream and "
            "Resident",
        ),
        (
            [{"name": "layers.*", "tier": "dram"}, {"name": "*.mlp", "tier": "pmem"}],
            "contradict each other for the layer layers.0.mlp: dram and pmem",
        ),
    ],
)
def test_what_no_plan_could_fulfil_is_no_question(objects: list[Object], said: str) -> None:
    with pytest.raises(QuestionError) as refused:
        llama(*objects).demand()
    assert str(refused.value).startswith("MemTask/llama: spec.swap.objects: the object")
    assert said in str(refused.value)


def test_resident_objects_beyond_the_budget_are_refused() -> None:
    asked = llama({"name": "layers.*", "policy": "Resident"}, spills=True, budget=1000)
    with pytest.raises(QuestionError, match=r"'layers\.\*' would keep 1Mi resident, which .* 1k"):
        asked.demand()


def test_weights_of_an_earlier_layer_and_pinned_ones_are_told() -> None:
    tied = (("embed", 100, False, 1.0), ("bias", 50, True, 0.0), ("head", 0, False, 1.0))
    with pytest.raises(QuestionError, match=r"'h..d' matches head, which have no weights"):
        Asked("tied", tied, ("dram",), ({"name": "h??d", "policy": "Resident"},)).demand()
    with pytest.raises(QuestionError, match=r"'bias' cannot stream: 1Mi of it must stay resident"):
        Asked("tied", tied, ("dram",), ({"name": "bias", "policy": "Stream"},)).demand()


def test_an_object_of_which_others_leave_nothing_is_told() -> None:
    layers = (
        ("embed", 150, False, 1.0),
        ("layers.0.attn", 20, False, 1.0),
        ("head", 130, False, 1.0),
    )
    objects = (
        {"name": "layers.*", "policy": "Stream"},
        {"name": "embed", "policy": "Resident"},
    )
    with pytest.raises(QuestionError, match=r"'layers\.\*' cannot stream: all of its 1Mi share"):
        Asked("small", layers, ("dram",), objects).demand()


@pytest.mark.parametrize(
    ("asked", "device", "said"),
    [
        (
            llama({"name": "embed", "tier": "pmem"}),
            machine(5000, dram=5000, pmem=200),
            "the object 'embed' of llama is to live in pmem (1Mi), where 0.0 MiB are missing; make "
            "pmem larger",
        ),
        (
            llama({"name": "embed", "tier": "pmem"}),
            machine(5000, dram=5000),
            "pmem, which this device does not have; name one of its tiers instead: dram",
        ),
        (
            llama({"name": "layers.*", "policy": "Resident"}),
            machine(1000),
            "the object 'layers.*' of llama is to stay resident (1Mi), and without that there "
            "would be room: ",
        ),
        (
            llama({"name": "*", "policy": "Stream", "tier": "pmem"}, period_ms=7),
            machine(5000),
            "the object '*' of llama is to stream from pmem (1Mi), and without that the set would ",
        ),
        (
            llama(
                *({"name": name, "policy": "Resident"} for name in ("layers.*", "embed", "h??d")),
            ),
            machine(600),
            "the object 'layers.*' of llama is to stay resident",
        ),
    ],
)
def test_a_wish_that_cannot_hold_is_refused_by_its_name(
    asked: Asked, device: DeviceCapacity, said: str
) -> None:
    answer = plan([asked.demand()], device)
    assert isinstance(answer, Infeasible)
    assert said in answer.sentence
    assert answer.wish is not None


def test_a_wish_takes_a_tier_before_those_who_have_none_for_it() -> None:
    """And what it takes nobody else may need more."""
    first = llama(tiers=("pmem", "dram")).but(name="first")
    second = llama({"name": "*", "tier": "pmem"})
    placed = placements([first.demand(), second.demand()], machine(0, dram=1700, pmem=1700))
    assert not isinstance(placed, Infeasible)
    assert [one.homes for one in placed] == [(("dram",) * 17, ("pmem",) * 17)]
    only = llama(tiers=("pmem",)).but(name="only")
    answer = plan([second.demand(), only.demand()], machine(9999, dram=1700, pmem=1700))
    assert isinstance(answer, Infeasible)
    assert answer.reason == "TierFull"
    assert answer.wish == ("llama", "*")


def test_what_a_pod_holds_does_not_fit_another_wish() -> None:
    without = llama().demand()
    answer = plan([without], machine(5000))
    assert isinstance(answer, Admitted)
    held = held_by(answer.plans[0])
    assert misfit(without, held) is None
    assert "'embed' is to stream" in str(
        misfit(llama({"name": "embed", "policy": "Stream"}).demand(), held)
    )
    assert "'embed' is to live in pmem" in str(
        misfit(llama({"name": "embed", "tier": "pmem"}).demand(), held)
    )


def test_one_more_task_with_wishes_gets_them() -> None:
    objects = (
        {"name": "embed.*", "policy": "Stream", "tier": "pmem"},
        {"name": "h??d", "policy": "Resident"},
    )
    device = machine(9000)
    first = settle([llama().demand()], device)
    assert not isinstance(first, Infeasible)
    for number, wished in enumerate(
        (objects[:1], objects[1:], ({"name": "embed", "policy": "Stream"},))
    ):
        asked = llama(*wished).but(name=f"next-{number}")
        one_more = admit(first, asked.demand())
        assert not isinstance(one_more, Infeasible)
        check(asked, one_more.plans[-1])


@st.composite
def tasks(draw: st.DrawFn, name: str) -> Asked:
    """A task of a few small layers, and some objects that a MemTask may have."""
    names = draw(st.lists(st.sampled_from([*LLAMA, "bias"]), min_size=1, unique=True))
    layers = tuple(
        (
            one,
            draw(st.integers(0, 400)),
            one == "bias",
            draw(st.sampled_from([0.1, 1.0, 3.0])),
        )
        for one in names
    )
    tiers = tuple(draw(st.permutations(["dram", "pmem", "nvme"]))[: draw(st.integers(1, 3))])
    policy = draw(st.sampled_from(["Auto", "Auto", "Stream", "Resident"]))
    allowed = ["Resident"] if policy == "Resident" else ["Resident", "Stream"]
    objects = []
    for wished in draw(st.lists(st.sampled_from(sorted(NAMES)), max_size=3, unique=True)):
        one = {"name": wished}
        if draw(st.booleans()):
            one["policy"] = draw(st.sampled_from(allowed))
        if draw(st.booleans()) or len(one) == 1:
            one["tier"] = draw(st.sampled_from(tiers))
        objects.append(one)
    return Asked(
        name,
        layers,
        tiers,
        tuple(objects),
        policy,
        period_ms=draw(st.sampled_from([10, 40, 100])),
        workspace=draw(st.integers(0, 300)),
    )


@st.composite
def sets(draw: st.DrawFn) -> tuple[list[Asked], DeviceCapacity]:
    """Up to three tasks, and a device that is often too small for them."""
    asked = [draw(tasks(f"t{number}")) for number in range(draw(st.integers(1, 3)))]
    sizes = {
        name: draw(st.integers(2, 60)) * EXTENT
        for name in draw(st.sampled_from([("dram", "pmem", "nvme"), ("dram", "pmem")]))
    }
    device = machine(draw(st.integers(2, 60)) * EXTENT, **sizes)
    ways = draw(st.sampled_from([[Scheduling.NON_PREEMPTIVE], list(Scheduling)]))
    return asked, DeviceCapacity(device.fast_bytes, device.tiers, supports=frozenset(ways))


@settings(max_examples=60)
@given(sets())
def test_every_plan_fulfils_every_wish_or_the_refusal_names_one(
    question: tuple[list[Asked], DeviceCapacity],
) -> None:
    asked, device = question
    demands = []
    for one in asked:
        try:
            demands.append(one.demand())
        except QuestionError as error:
            event("no question")
            _is_to_blame_for_that(one, str(error))
            return
    answer = plan(demands, device)
    if isinstance(answer, Admitted):
        event("admitted")
        for one, demand, got in zip(asked, demands, answer.plans, strict=True):
            check(one, got)
            assert run_job(machine_of(demand, got, device)) <= got.job_time_s + 1e-9
        return
    event("refused")
    without = [one.but(objects=()).demand() for one in asked]
    if answer.wish is None:
        # Whatever was wished, it is not what the set fails by.
        plain = plan(without, device)
        assert isinstance(plain, Infeasible)
        assert answer.kind == "deadline" or plain.kind != "deadline"
        return
    event("refused by a wish")
    task, name = answer.wish
    assert repr(name) in answer.sentence
    for index, one in enumerate(asked):
        if one.name == task:
            left = tuple(wish for wish in one.objects if wish["name"] != name)
            assert left != one.objects
            demands[index] = one.but(objects=left).demand()
    again = plan(demands, device)
    assert again.ok or getattr(again, "sentence", "") != answer.sentence


def _is_to_blame_for_that(one: Asked, said: str) -> None:
    """Without an object that the sentence names there is none, or another one."""
    named = [wish for wish in one.objects if repr(wish["name"]) in said]
    assert named
    for wish in named:
        left = one.but(objects=tuple(other for other in one.objects if other != wish))
        assert _refused(left) != said


def _refused(one: Asked) -> str:
    try:
        one.demand()
    except QuestionError as error:
        return str(error)
    return ""


def _all_choices(search: Search) -> Iterator[list[int]]:
    yield from map(list, product(*(range(len(options)) for options in search.options)))


@settings(max_examples=25)
@given(tasks("t0"), tasks("t1"))
def test_the_exact_optimum_has_the_wishes_too(one: Asked, two: Asked) -> None:
    pair = [one, two]
    try:
        demands = [asked.demand() for asked in pair]
    except QuestionError:
        assume(False)
    prepared = prepare(demands, machine(1 << 20, dram=1 << 20, pmem=1 << 20, nvme=1 << 20))
    assert not isinstance(prepared, Infeasible)
    ring = max(4, *(task.least_ring for task in prepared[0].tasks))
    search = Search(prepared[0].tasks, {"default": ring}, prepared[0].test)
    for options, demand in zip(search.options, demands, strict=True):
        for option in options:
            assert demand.kept <= option.point.resident
            assert not demand.streamed & option.point.resident
    if len(search.options[0]) * len(search.options[1]) > 200:
        return
    held = [found.used for c in _all_choices(search) if (found := search.judge(c)).ok]
    best = least_memory(search)
    assert (None if best is None or not best.ok else best.used) == min(held, default=None)
    if held:
        assert search.bound.refuses(min(held)) is False
