"""What is added to a pod that opts in; each change as CEL and as Python.

Invariant: a change that was made is never made again, so that policies may run a manifest twice, a
manifest that `tierline inject` wrote is left alone, and one that was half written is completed.
Nothing is taken away, no order is changed, and containers that are not meant stay as they are.

In CEL a change is a JSON patch: it states exactly what is written where, while an apply
configuration would also sort environment variables, whose order matters to `$(NAME)`.
"""

from typing import Final, Protocol

from tierline_api.objects.optin import GATE, POD_CLAIM, TASK
from tierline_api.objects.pod import (
    LIBRARY,
    LISTS,
    PRELOAD,
    Manifest,
    Pod,
    is_preload,
    items,
    mapping,
)


class Change(Protocol):
    """One change of a pod."""

    @property
    def cel(self) -> str:
        """An expression for a list of JSONPatch; empty if there is nothing to do."""

    def apply(self, pod: Pod) -> None:
        """Make the same change."""


class AddLabel:
    """The task's name as a label, so that a task's pods can be listed."""

    @property
    def cel(self) -> str:
        """The patch."""
        key = TASK.replace("/", "~1")
        add = f"JSONPatch{{op: 'add', path: '/metadata/labels/{key}', value: variables.task}}"
        new = (
            f"JSONPatch{{op: 'add', path: '/metadata/labels', value: {{'{TASK}': variables.task}}}}"
        )
        return f"has(object.metadata.labels) ? [{add}] : [{new}]"

    def apply(self, pod: Pod) -> None:
        """Make the change."""
        metadata = pod.manifest.setdefault("metadata", {})
        metadata["labels"] = {**mapping(metadata.get("labels")), TASK: pod.task}


class AddGate:
    """The gate that holds the pod until its claim is allocated.

    A pod that was bound to a node by hand cannot have one, and is refused by its own rule.
    """

    @property
    def cel(self) -> str:
        """The patch."""
        there = f"object.spec.?schedulingGates.orValue([]).exists(g, g.name == '{GATE}')"
        entry = f"{{'name': '{GATE}'}}"
        return f"{there} || has(object.spec.nodeName) ? [] : " + _append(
            "object.spec.schedulingGates", "'/spec/schedulingGates'", entry, listed=True
        )

    def apply(self, pod: Pod) -> None:
        """Make the change."""
        if pod.spec.get("nodeName"):
            return
        gates = pod.spec.get("schedulingGates")
        if not any(gate.get("name") == GATE for gate in items(gates)):
            pod.spec["schedulingGates"] = [*items(gates), {"name": GATE}]


class AddClaim:
    """The claim, made from the template that has the task's name."""

    @property
    def cel(self) -> str:
        """The patch."""
        there = f"object.spec.?resourceClaims.orValue([]).exists(c, c.name == '{POD_CLAIM}')"
        entry = f"{{'name': '{POD_CLAIM}', 'resourceClaimTemplateName': variables.task}}"
        return f"{there} ? [] : " + _append(
            "object.spec.resourceClaims", "'/spec/resourceClaims'", entry, listed=True
        )

    def apply(self, pod: Pod) -> None:
        """Make the change."""
        claims = pod.spec.get("resourceClaims")
        if not any(claim.get("name") == POD_CLAIM for claim in items(claims)):
            entry = {"name": POD_CLAIM, "resourceClaimTemplateName": pod.task}
            pod.spec["resourceClaims"] = [*items(claims), entry]


class UseClaim:
    """The claim for each meant container of one list."""

    def __init__(self, containers: str) -> None:
        """Of the list `containers` of the spec."""
        self._list = containers

    @property
    def cel(self) -> str:
        """The patch."""
        there = f"c.?resources.?claims.orValue([]).exists(u, u.name == '{POD_CLAIM}')"
        path = f"'/spec/{self._list}/' + string(i) + '/resources'"
        use = f"{{'name': '{POD_CLAIM}'}}"
        claims = _append("c.resources.claims", f"{path} + '/claims'", use)
        resources = f"JSONPatch{{op: 'add', path: {path}, value: {{'claims': [{use}]}}}}"
        change = f"has(c.resources) ? ({claims}) : {resources}"
        return _for_each(self._list, f"c.name in variables.meant && !{there}", change)

    def apply(self, pod: Pod) -> None:
        """Make the change."""
        for placed in pod.meant():
            if placed.list != self._list:
                continue
            resources = mapping(placed.container.get("resources"))
            claims = items(resources.get("claims"))
            if not any(claim.get("name") == POD_CLAIM for claim in claims):
                placed.container["resources"] = {
                    **resources,
                    "claims": [*claims, {"name": POD_CLAIM}],
                }


class AddPreload:
    """LD_PRELOAD for each meant container of one list that does not set it."""

    def __init__(self, containers: str) -> None:
        """Of the list `containers` of the spec."""
        self._list = containers

    @property
    def cel(self) -> str:
        """The patch."""
        there = f"c.?env.orValue([]).exists(e, e.name == '{PRELOAD}')"
        entry = f"{{'name': '{PRELOAD}', 'value': '{LIBRARY}'}}"
        change = _append("c.env", f"'/spec/{self._list}/' + string(i) + '/env'", entry)
        return _for_each(self._list, f"c.name in variables.meant && !{there}", change)

    def apply(self, pod: Pod) -> None:
        """Make the change."""
        for placed in pod.meant():
            environment = items(placed.container.get("env"))
            if placed.list == self._list and not any(map(is_preload, environment)):
                placed.container["env"] = [*environment, {"name": PRELOAD, "value": LIBRARY}]


class MergePreload:
    """LD_PRELOAD for each meant container of one list that sets it: the library in front of it.

    Of several entries of the same name the last one counts. One that takes its value from
    elsewhere is refused by its own rule.
    """

    def __init__(self, containers: str) -> None:
        """Of the list `containers` of the spec."""
        self._list = containers

    @property
    def cel(self) -> str:
        """The patch."""
        of_name = f"c.?env.orValue([]).filter(e, e.name == '{PRELOAD}')"
        last = f"{of_name}[size({of_name}) - 1]"
        words = f"{last}.?value.orValue('').replace(':', ' ').split(' ')"
        wanted = (
            f"c.name in variables.meant && size({of_name}) > 0"
            f" && !has({last}.valueFrom) && !('{LIBRARY}' in {words})"
        )
        places = f"c.env.transformList(j, e, e.name == '{PRELOAD}', j)"
        path = (
            f"'/spec/{self._list}/' + string(i) + '/env/'"
            f" + string({places}[size({of_name}) - 1]) + '/value'"
        )
        own = f"{last}.?value.orValue('')"
        value = f"'{LIBRARY}' + ({own} == '' ? '' : ' ' + {own})"
        return _for_each(
            self._list, wanted, f"JSONPatch{{op: 'add', path: {path}, value: {value}}}"
        )

    def apply(self, pod: Pod) -> None:
        """Make the change."""
        for placed in pod.meant():
            entries = [e for e in items(placed.container.get("env")) if is_preload(e)]
            if placed.list == self._list and entries and "valueFrom" not in entries[-1]:
                _put_in_front(entries[-1])


def _put_in_front(entry: Manifest) -> None:
    own = str(entry.get("value") or "")
    if LIBRARY not in own.replace(":", " ").split(" "):
        entry["value"] = f"{LIBRARY} {own}" if own else LIBRARY


def _append(whole: str, path: str, entry: str, *, listed: bool = False) -> str:
    """Return CEL that adds `entry` to the list `whole`, which lies at `path` if it is there."""
    more = f"JSONPatch{{op: 'add', path: {path} + '/-', value: {entry}}}"
    new = f"JSONPatch{{op: 'add', path: {path}, value: [{entry}]}}"
    return f"(has({whole}) ? [{more}] : [{new}])" if listed else f"has({whole}) ? {more} : {new}"


def _for_each(containers: str, wanted: str, change: str) -> str:
    """Return CEL for one patch a container `c` (the `i`-th) of a list for which `wanted` holds."""
    return f"object.spec.?{containers}.orValue([]).transformList(i, c, {wanted}, {change})"


CHANGES: Final[tuple[Change, ...]] = (
    AddLabel(),
    AddGate(),
    AddClaim(),
    *(UseClaim(name) for name in LISTS),
    *(AddPreload(name) for name in LISTS),
    *(MergePreload(name) for name in LISTS),
)
"""All of them, in the order in which they are made."""
