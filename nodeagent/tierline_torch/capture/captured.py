"""Runs a static model as one captured CUDA graph per shape of its input.

A graph makes launch-bound jobs shorter and all jobs steady. The first calls of a shape run the
model as it is, on the stream of the capture to come: libraries allocate and choose kernels then.
The next one is captured, by the path that these took (`eager_path`), and the graph is launched in
its place. So each call runs the model once. Only where a capture fails has Python run before the
model runs as it is: it says so, and no capture of that model is tried again.

The inputs are copied into the graph's own, the outputs out of it, so a caller keeps what it got.
Keyword arguments and arguments that are no tensors are part of the shape, and so are autocast and
inference mode. Where an argument may change without a trace (it is no tensor, number, text or the
like) the model runs as it is.

Invariant: a graph is replayed only while every parameter and buffer is at the address, and every
module in the place and the mode (`training`), that it was captured with. Values written in place
are seen anyway. A model that the program changed otherwise runs as it is once, as the change may be
for one call only; the next call that finds it unchanged captures it again. One whose weights
Tierline moved is captured again at once. To look at all of that takes as long as some tens of
launches: where a run leaves nothing but its outputs (`writes`), and no memory of the capture was
freed, the GPU runs the graph meanwhile, and its outputs are left if it should not have.

A model that looks at values unless it is captured (`eager_path`) takes another path in its graph
than in its first calls, as in any capture of PyTorch's: last bits may differ between them. It is
said.

Nothing tells what else a model looks at: hooks, attributes of modules, global settings of PyTorch
such as the precision of products, its inputs' values. All of these stay as they were when it was
captured; a model whose work depends on them later must not be captured.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from enum import Enum
from functools import partial
from itertools import chain, compress
from operator import is_
from types import NoneType
from typing import Any

import torch
from torch.utils import _pytree as pytree

from tierline_torch.arenas import arena
from tierline_torch.calls import current
from tierline_torch.capture.eager_path import eager_path, waits_for_gpu
from tierline_torch.telling import tell
from tierline_torch.tensors.clean_launches import clean_launches, followed
from tierline_torch.tensors.looking import inner_tensors
from tierline_torch.tensors.writes import Writes

_WARM_UPS = 3
_OTHER_PATH = (
    "looks at values, which no graph can: its graph takes another path than its first calls did, "
    "and last bits may differ between them"
)
_IN_VAIN = "to find out, its forward ran once more than it was called"
_preparations = 0
_MOST_GRAPHS = 16
"""Shapes of one model that are kept captured; beyond, the model runs as it is."""
_PLAIN = frozenset(
    {NoneType, bool, int, float, complex, str, bytes}
    | {torch.Size, torch.dtype, torch.device, torch.layout, torch.memory_format}
)
"""Types whose values never change, and are what their `repr` says."""
_is_none = partial(is_, None)


def _mode(module: torch.nn.Module) -> bool | None:
    """None for a frozen script, which is in no mode."""
    return getattr(module, "training", None)


def preparations() -> int:
    """Calls of this process so far that made ready for a graph, or made one."""
    return _preparations


def _count_preparation() -> None:
    global _preparations  # noqa: PLW0603  # of the whole process
    _preparations += 1


class _Warm:
    """The calls of one shape before it is captured, each of them the program's own."""

    def __init__(self) -> None:
        self.calls = 0
        self.looks = False
        """Whether such a call made the CPU wait for the GPU."""
        self._stream: torch.cuda.Stream | None = None

    @property
    def stream(self) -> torch.cuda.Stream:
        """The stream of the capture, on which the calls before it run as well."""
        if self._stream is None:
            self._stream = torch.cuda.Stream()
        return self._stream

    def run(self, call: Callable[[], Any]) -> Any:
        """Run one call before the capture."""
        self.calls += 1
        caller = torch.cuda.current_stream()
        self.stream.wait_stream(caller)
        try:
            with torch.cuda.stream(self.stream):
                if self.calls < _WARM_UPS:
                    result = call()
                else:
                    result, self.looks = waits_for_gpu(call)
        finally:
            caller.wait_stream(self.stream)
        for one in pytree.tree_leaves(result):
            if isinstance(one, torch.Tensor) and one.is_cuda:
                one.record_stream(caller)
        return result


@dataclass
class _Captured:
    graph: torch.cuda.CUDAGraph
    harmless: bool
    """Whether it may be run in vain."""
    inputs: list[torch.Tensor]
    outputs: list[Any]
    structure: Any

    def launch(self, tensors: Sequence[torch.Tensor]) -> None:
        for own, given in zip(self.inputs, tensors, strict=True):
            own.copy_(given)
        self.graph.replay()

    def result(self) -> Any:
        kept = [one.clone() if isinstance(one, torch.Tensor) else one for one in self.outputs]
        return pytree.tree_unflatten(kept, self.structure)


class _Live:
    """The values of a scripted module's registry, which makes a list of them when it is asked."""

    def __init__(self, registry: Mapping[str, Any]) -> None:
        self._registry = registry

    def __iter__(self) -> Iterator[Any]:
        return iter(self._registry.values())


class _Held:
    """The state of a module that graphs hold: where its tensors are, its modules, and their modes.

    It is compared at every call, and must take less than the launches that a graph saves. So it
    does not walk the modules: views of their registries are live. A weight costs some 0.1 us.
    Weights that were exchanged are not kept alive; a module that was taken out is, until the next
    call. Raises RuntimeError or ValueError for weights that are nowhere yet.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        self._modules = tuple(module.modules())
        tensors = [one for each in self._modules for one in (each._parameters, each._buffers)]
        parts = [each._modules for each in self._modules]
        self._empty = [one for one in (*tensors, *parts) if not one]
        self._tensors = [_values(one) for one in tensors if one]
        self._parts = [_values(one) for one in parts if one]
        self._were_parts = list(chain.from_iterable(self._parts))
        self._were_modes = list(map(_mode, self._modules))
        live = list(chain.from_iterable(self._tensors))
        self._present = [one is not None for one in live]
        self._absent = [one is None for one in live]
        self._were_places = self._places(live)
        # An address may come back with something else: the first was freed then. Memory is
        # watched, no tensor: PyTorch refuses to exchange one that has a weak reference.
        self._freed: list[object] = []
        self._watched = [
            weakref.ref(part.untyped_storage(), self._freed.append)
            for one in live
            if one is not None
            for part in _known_parts(one)
        ]

    @property
    def mapped(self) -> bool:
        """Whether all memory that graphs were captured with is still there."""
        return not self._freed

    def unchanged(self) -> bool:
        """Whether graphs that were captured then may be replayed now."""
        parts = list(chain.from_iterable(self._parts))
        live = list(chain.from_iterable(self._tensors))
        return (
            self.mapped
            and not any(self._empty)
            and len(parts) == len(self._were_parts)
            and all(map(is_, parts, self._were_parts))
            and self._were_modes == list(map(_mode, self._modules))
            and len(live) == len(self._present)
            and all(map(_is_none, compress(live, self._absent)))
            and self._were_places == self._places(live)
        )

    def _places(self, live: list[Any]) -> Sequence[int | tuple[int, ...]]:
        present = list(compress(live, self._present))
        if any(map(_is_none, present)):
            return []
        places = list(map(torch.Tensor.data_ptr, present))
        if 0 in places:  # a tensor that only wraps others has no address: by theirs then
            return [
                place or tuple(part.data_ptr() for part in _plain_parts(one))
                for place, one in zip(places, present, strict=True)
            ]
        return places


def _plain_parts(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The tensors with an address that a tensor is made of: itself, where it has one.

    Empty if nothing tells.
    """
    if tensor.data_ptr():
        return [tensor]
    return [deep for _, part in inner_tensors(tensor) for deep in _plain_parts(part)]


def _known_parts(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The same. Raises ValueError if nothing tells where its values are."""
    parts = _plain_parts(tensor)
    if not parts and tensor.numel():
        raise ValueError("nothing tells where its values are")
    return parts


def _values(registry: Mapping[str, Any]) -> Iterable[Any]:
    return registry.values() if isinstance(registry, dict) else _Live(registry)


class _Graphs:
    """The graphs of one module. No container that a repeated job would put back as it was.

    A copy of the module, or one that was pickled, starts without any.
    """

    def __init__(self) -> None:
        self.by_shape: dict[object, _Captured] = {}
        self.warm: dict[object, _Warm] = {}
        """Libraries are ready for these, wherever the weights lie."""
        self.held: _Held | None = None
        """The state with which all of them were captured; None before the first."""
        self.moves = 0
        self.refused = False
        self.said = False

    def __reduce__(self) -> tuple[type[_Graphs], tuple[()]]:
        return _Graphs, ()


class Captured(torch.nn.Module):
    """A module that runs another one as captured graphs."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self.module = module
        self.training = getattr(module, "training", False)
        self._graphs = _Graphs()

    @property
    def prepares(self) -> bool:
        """Whether the next call captures the graphs again, as weights moved: it takes longer."""
        graphs = self._graphs
        return not graphs.refused and graphs.held is not None and graphs.moves != arena.moves()

    @property
    def looks(self) -> bool:
        """Whether a call before a graph made the CPU wait for the GPU."""
        return any(one.looks for one in self._graphs.warm.values())

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The module's result."""
        leaves: Sequence[Any] = args
        structure = None
        if kwargs or not all(isinstance(one, torch.Tensor) for one in args):
            # Not for a mere list of tensors: it takes longer than the launch of the graph.
            try:
                leaves, structure = pytree.tree_flatten((args, kwargs))
            except RecursionError:  # a list that is in itself
                return self.module(*args, **kwargs)
        tensors = [one for one in leaves if isinstance(one, torch.Tensor)]
        if self._graphs.refused or torch.is_grad_enabled() or not _on_gpu(tensors):
            return self.module(*args, **kwargs)
        try:
            key = _key(leaves, structure)
            known = self._graphs.by_shape.get(key)
        except TypeError as error:
            self._say_once(f"runs without a graph for some arguments: {_first_line(error)}")
            return self.module(*args, **kwargs)
        if known is not None and known.harmless and self._may_be_settled():
            # Before the outputs are copied: that way the code of a launch is in the caches again
            # when the next job begins, for which the GPU waits.
            known.launch(tensors)
            return known.result() if self._settled() else self.module(*args, **kwargs)
        return self._run(key, tensors, leaves, structure, partial(self.module, *args, **kwargs))

    def _run(
        self,
        key: object,
        tensors: Sequence[torch.Tensor],
        leaves: Sequence[Any],
        structure: Any,
        as_it_is: Callable[[], Any],
    ) -> Any:
        """A call of such a shape that no graph was launched for yet."""
        if not self._settled():
            return as_it_is()
        known = self._graphs.by_shape.get(key)
        if known is None:
            warm = self._warm(key)
            if warm is not None and warm.calls < _WARM_UPS:
                result = warm.run(as_it_is)
                opaque = _opaque(pytree.tree_leaves(result))
                if opaque is not None:
                    self._refuse(opaque)
                return result
            known = None if warm is None else self._capture(warm, leaves, structure)
            if known is None:
                return as_it_is()
            self._settled()  # a forward may exchange a buffer, as for a longer input
            self._graphs.by_shape[key] = known
        known.launch(tensors)
        return known.result()

    def _warm(self, key: object) -> _Warm | None:
        """How far such a shape is that has no graph; None if it gets none."""
        _count_preparation()
        warm = self._graphs.warm
        if key not in warm and len(warm) < _MOST_GRAPHS:
            warm[key] = _Warm()
        return warm.get(key)

    def _may_be_settled(self) -> bool:
        """Whether a graph harms nobody: nothing that it reads was moved or freed."""
        held = self._graphs.held
        return held is not None and held.mapped and self._graphs.moves == arena.moves()

    def _settled(self) -> bool:
        """Whether the module is as at the last call, or as Tierline moved it.

        Afterwards there are no graphs of what it was before.
        """
        graphs, moves = self._graphs, arena.moves()
        moved = graphs.held is None or graphs.moves != moves
        with suppress(RuntimeError):  # of a tensor that has no address by now
            if not moved and graphs.held is not None and graphs.held.unchanged():
                return True
        graphs.by_shape.clear()
        graphs.moves = moves
        try:
            graphs.held = _Held(self.module)
        except (RuntimeError, ValueError):
            graphs.held = None
            return False
        return moved

    def _capture(self, warm: _Warm, leaves: Sequence[Any], structure: Any) -> _Captured | None:
        own = [one.clone() if isinstance(one, torch.Tensor) else one for one in leaves]
        args, kwargs = (own, {}) if structure is None else pytree.tree_unflatten(own, structure)

        def call() -> Any:
            return self.module(*args, **kwargs)

        if warm.looks:
            self._say_once(_OTHER_PATH)
        writes = Writes()
        try:
            with current.without_lease():
                graph, result = _captured(call, writes, warm)
        except RuntimeError as error:
            self._refuse(f"{_first_line(error)}; {_IN_VAIN}")
            return None
        outputs, shape = pytree.tree_flatten(result)
        inputs = [one for one in own if isinstance(one, torch.Tensor)]
        reason = "it writes to its inputs" if writes.wrote(inputs) else _opaque(outputs)
        if reason is not None:
            self._refuse(f"{reason}; {_IN_VAIN}")
            return None
        return _Captured(graph, writes.harmless, inputs, outputs, shape)

    def _refuse(self, reason: str) -> None:
        self._graphs.refused = True
        self._say(f"runs without a graph: {reason}")

    def _say_once(self, what: str) -> None:
        if not self._graphs.said:
            self._graphs.said = True
            self._say(what)

    def _say(self, what: str) -> None:
        tell(f"{_name(self.module)} {what}")


class _Structure:
    """How arguments are nested, in a key; not each PyTorch can hash its own of that."""

    __slots__ = ("_spec",)

    def __init__(self, spec: Any) -> None:
        self._spec = spec

    def __hash__(self) -> int:
        return hash((self._spec.type, self._spec.num_leaves))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Structure) and bool(self._spec == other._spec)


def _key(leaves: Sequence[Any], structure: Any) -> object:
    """The key of a graph. Raises TypeError for arguments that may change without a trace."""
    return (
        None if structure is None else _Structure(structure),
        tuple(
            (one.shape, one.stride(), one.dtype)
            if isinstance(one, torch.Tensor)
            else _constant(one)
            for one in leaves
        ),
        torch.is_autocast_enabled("cuda") and torch.get_autocast_dtype("cuda"),
        torch.is_inference_mode_enabled(),  # its tensors cannot be written outside of it
    )


def _constant(leaf: object) -> object:
    if not _is_plain(leaf):
        raise TypeError(f"nothing tells whether a {_name(leaf)} has changed")
    # 2, 2.0 and True are equal, and so are 0.0 and -0.0: what is computed with them is not.
    return type(leaf), leaf if isinstance(leaf, Enum) else repr(leaf)


def _opaque(outputs: Iterable[object]) -> str | None:
    """Why a graph cannot give these again; None if it can."""
    for one in outputs:
        if not isinstance(one, torch.Tensor) and not _is_plain(one):
            return f"nothing tells which tensors are in the {_name(one)} that it returns"
    return None


def _is_plain(leaf: object) -> bool:
    return type(leaf) in _PLAIN or isinstance(leaf, Enum)


def _name(one: object) -> str:
    return type(one).__name__


def _captured(
    call: Callable[[], Any], writes: Writes, warm: _Warm
) -> tuple[torch.cuda.CUDAGraph, Any]:
    torch.cuda.synchronize()
    with nullcontext() if warm.looks else eager_path():
        return _capture(call, warm.stream, writes)


def _capture(
    call: Callable[[], Any], stream: torch.cuda.Stream, writes: Writes
) -> tuple[torch.cuda.CUDAGraph, Any]:
    before = torch.cuda.current_stream()
    graph = torch.cuda.CUDAGraph()
    try:
        with followed(), torch.cuda.graph(graph, stream=stream), clean_launches(), writes:
            result = call()
    except BaseException:
        torch.cuda.set_stream(before)  # one that fails may leave its own
        _end_failed(stream)
        raise
    return graph, result


def _end_failed(stream: torch.cuda.Stream) -> None:
    """End what a capture that failed began.

    PyTorch leaves its generator of random numbers as if the capture went on; the next one that goes
    well ends that.
    """
    torch.cuda.synchronize()
    value = torch.zeros(1, device="cuda")
    with suppress(RuntimeError), torch.cuda.graph(torch.cuda.CUDAGraph(), stream=stream):
        value.zero_()


def _on_gpu(tensors: Sequence[torch.Tensor]) -> bool:
    return bool(tensors) and all(one.is_cuda for one in tensors)


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]
