"""The order of weights that an observed run learned, and its way to the managed runs.

A plan is made for the order and the resident weights of one observed run. A managed run learns for
itself, and may learn something a little different: a launch may seem to name a weight that it does
not read, not the same one in every process. So the observed run writes down what it chose, and a
managed run that can (`launch_order.explains`) lays its arena out in the same way.

Weights are told apart by name and size. An order is for exactly the weights that it lists.

The file is the one that the observed run writes (`observed`), a JSON object a line;
TIERLINE_LEARNED names it in a managed run: of `tierline run`, or of the pod that was measured.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tierline_torch.arenas.contents import Contents
from tierline_torch.arenas.selection import Layer, Pinned, Selection
from tierline_torch.errors import TierlineError
from tierline_torch.tensors.weights import Weight

KEY = "order"


def as_record(contents: Contents, names: Mapping[int, str], workspace_bytes: int) -> dict[str, Any]:
    """A line of the file about an arena; `names` are the modules' (by id)."""
    selection = contents.selection
    staying = [contents.weights[index] for group in selection.stays for index in group.weights]
    weights = [weight for weight, _ in contents.placed] + staying
    number = {id(weight): at for at, weight in enumerate(weights)}
    at = [number[id(weight)] for weight in contents.weights]
    return {
        KEY: {
            "weights": [[weight.name, weight.size_bytes] for weight in weights],
            "pinned": [
                [group.reason, [at[index] for index in group.weights]] for group in selection.pinned
            ],
            "stays": [
                [group.reason, [at[index] for index in group.weights]] for group in selection.stays
            ],
            "layers": [[at[index] for index in layer.weights] for layer in selection.layers],
            "modules": [names.get(layer.module or 0, "") for layer in selection.layers],
            "workspace_bytes": workspace_bytes,
            "launches": [[at[index] for index in launch] for launch in selection.launches],
        }
    }


class LearnedOrders:
    """Choices of observed runs, by weights."""

    def __init__(self, records: Sequence[dict[str, Any]]) -> None:
        self._orders = {
            frozenset((name, size) for name, size in order["weights"]): order for order in records
        }

    @classmethod
    def of_this_process(cls) -> LearnedOrders:
        """Those that TIERLINE_LEARNED names, or none. Raises TierlineError."""
        path = os.environ.get("TIERLINE_LEARNED")
        if not path:
            return cls([])
        try:
            # Killed while it was measured, a program leaves a last line that has no end.
            whole = Path(path).read_text().split("\n")[:-1]
            lines = [json.loads(line) for line in whole]
            return cls([line[KEY] for line in lines if KEY in line])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise TierlineError(
                f"could not read the learned order in TIERLINE_LEARNED={path}: {error}; "
                "give a file that an observed run wrote"
            ) from error

    def of(
        self, weights: Sequence[Weight], names: Mapping[int, str]
    ) -> tuple[Selection, int] | None:
        """The choice for exactly these weights, by index, and the workspace, bytes.

        `names` are the modules', by id. None, too, where two of them have one name.
        """
        index = {(one.name, one.size_bytes): at for at, one in enumerate(weights)}
        order = self._orders.get(frozenset(index))
        if order is None or len(index) != len(weights):
            return None
        at = [index[name, size] for name, size in order["weights"]]
        modules = {name: key for key, name in names.items()}
        gates = [modules.get(name) for name in order["modules"]]
        at_modules = not order["launches"]
        if at_modules and (len(modules) != len(names) or None in gates):
            return None

        def named(chosen: Sequence[int]) -> tuple[int, ...]:
            return tuple(at[one] for one in chosen)

        selection = Selection(
            layers=tuple(
                Layer(gate if at_modules else None, named(chosen))
                for gate, chosen in zip(gates, order["layers"], strict=True)
            ),
            pinned=tuple(Pinned(reason, named(chosen)) for reason, chosen in order["pinned"]),
            stays=tuple(Pinned(reason, named(chosen)) for reason, chosen in order["stays"]),
            launches=tuple(named(chosen) for chosen in order["launches"]),
        )
        return selection, int(order["workspace_bytes"])
