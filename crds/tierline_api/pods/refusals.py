"""What cannot work, each with one sentence; as CEL for the API server and as Python.

Rules look at a pod, or at the template of pods, as a user wrote it. The API server asks them of
pods after the changes; those leave alone what a rule refuses, so that the rule is what speaks.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from tierline_api.objects.memtask import TRAINS_IN_GAPS
from tierline_api.objects.optin import (
    INLINE,
    INLINE_NEEDED,
    INLINE_PERIOD,
    INLINE_TIMES,
    INLINE_TRAINS,
    POD_CLAIM,
    TASK,
)
from tierline_api.objects.pod import (
    ALL_CONTAINERS_CEL,
    CONTAINERS,
    FOLDER,
    PRELOAD,
    Pod,
    is_preload,
    items,
    mapping,
)
from tierline_api.objects.realtime import Criticality
from tierline_api.pods.inline_rules import InlineRule, inline_rules
from tierline_api.pods.values import VALUES, Kind
from tierline_api.schema.fields import is_label, is_label_text

KNOWN: Final = (TASK, CONTAINERS, *INLINE)
"""All annotations of pods that start with `tierline.io/`."""
_SANDBOXES: Final = r"^(kata|gvisor|runsc|firecracker|wasm|spin)([-.].*)?$"
"""Names of runtimes whose containers have a kernel, or a machine, of their own."""
_GPUS: Final = r"^(nvidia\.com/(gpu|mig-.*|.*\.shared)|amd\.com/gpu|gpu\.intel\.com/.*)$"
"""Names of resources by which device plugins give containers a GPU."""


@dataclass(frozen=True)
class Refusal:
    """One thing that cannot work."""

    cel: str
    """An expression that is true of every pod with which this is not wrong."""
    message: str
    """What to say otherwise: what is wrong, and what to write."""
    broken: Callable[[Pod], bool]
    """Say in Python that it is wrong."""


def warnings(pod: Pod) -> list[str]:
    """Return the sentences of the warnings that `pod` deserves."""
    return [warning.message for warning in WARNINGS if warning.broken(pod)]


def first(pod: Pod) -> Refusal | None:
    """Return the first rule that `pod` breaks."""
    return next((refusal for refusal in REFUSALS if refusal.broken(pod)), None)


def _listed(names: Iterable[str]) -> str:
    return "[" + ", ".join(f"'{name}'" for name in names) + "]"


def _each_meant(condition: str) -> str:
    """Return CEL: `condition` holds of each container `c` that is meant."""
    return f"{ALL_CONTAINERS_CEL}.all(c, !(c.name in variables.meant) || ({condition}))"


def _value(name: str, kind: Kind) -> Refusal:
    """Return the rule that an inline annotation says what it may."""
    text = f"variables.annotations['{name}']"
    return Refusal(
        f"!('{name}' in variables.annotations) || ({kind.cel(text)})",
        f"the annotation {name} is not valid; {kind.advice}",
        lambda pod: name in pod.annotations and not kind.right(pod.annotations[name]),
    )


def _taken_from_elsewhere(pod: Pod) -> bool:
    for placed in pod.meant():
        entries = [e for e in items(placed.container.get("env")) if is_preload(e)]
        if entries and "valueFrom" in entries[-1]:
            return True
    return False


def _foreign_claim(pod: Pod) -> bool:
    return pod.opted_in and any(
        claim.get("name") == POD_CLAIM and claim.get("resourceClaimTemplateName") != pod.task
        for claim in items(pod.spec.get("resourceClaims"))
    )


def _mounts_over(pod: Pod) -> bool:
    paths = [
        str(mount.get("mountPath"))
        for placed in pod.meant()
        for mount in items(placed.container.get("volumeMounts"))
    ]
    return any(path == FOLDER or path.startswith(f"{FOLDER}/") for path in paths)


def missing(annotations: Mapping[str, str]) -> list[str]:
    """What annotations that describe a task lack."""
    timeless = INLINE_TRAINS in annotations and not any(k in annotations for k in INLINE_TIMES)
    return [
        name
        for name in INLINE_NEEDED
        if name not in annotations and not (name == INLINE_PERIOD and timeless)
    ]


def _together(rule: InlineRule) -> Refusal:
    """Return a rule of MemTask for the annotations of a pod."""
    texts = {name: f"variables.annotations['{name}']" for name in rule.annotations}
    there = " && ".join(f"'{name}' in variables.annotations" for name in texts)
    right = " && ".join(f"({VALUES[name].cel(text)})" for name, text in texts.items())

    def broken(pod: Pod) -> bool:
        said = {name: pod.annotations[name] for name in INLINE if name in pod.annotations}
        judged = all(VALUES[name].right(said[name]) for name in rule.annotations if name in said)
        return judged and rule.broken(said)

    return Refusal(f"!({there}) || !({right}) || ({rule.cel})", rule.says, broken)


def _own_gpu(pod: Pod) -> bool:
    return pod.opted_in and any(
        re.match(_GPUS, name) is not None
        for placed in pod.meant()
        for part in ("limits", "requests")
        for name in mapping(mapping(placed.container.get("resources")).get(part))
    )


def _hides_preload(pod: Pod) -> bool:
    return pod.opted_in and any(
        items(placed.container.get("envFrom"))
        and not any(map(is_preload, items(placed.container.get("env"))))
        for placed in pod.meant()
    )


def _other_claim(pod: Pod) -> bool:
    return pod.opted_in and any(
        claim.get("name") != POD_CLAIM
        for placed in pod.meant()
        for claim in items(mapping(placed.container.get("resources")).get("claims"))
    )


_NAME: Final = f"variables.annotations['{TASK}']"
_OF_TASK: Final = Refusal(
    "variables.annotations.all(k, !k.startsWith('tierline.io/')"
    f" || '{TASK}' in variables.annotations)",
    f"annotations of tierline.io need {TASK}; write the name of the MemTask that the pod runs, or"
    " of the one to make of it",
    lambda pod: not pod.opted_in and any(k.startswith("tierline.io/") for k in pod.annotations),
)
_TRAINS: Final = f"'{INLINE_TRAINS}' in variables.annotations"
_NO_TIMES: Final = f"{_TRAINS} && !{_listed(INLINE_TIMES)}.exists(t, t in variables.annotations)"
_CRITICALITY: Final = "tierline.io/criticality"
_PRELOADS: Final = f"c.?env.orValue([]).filter(e, e.name == '{PRELOAD}')"
_NEEDED: Final = ", ".join(INLINE_NEEDED[:-1]) + f" and {INLINE_NEEDED[-1]}"
_OPTED_IN: Final = f"'{TASK}' in variables.annotations"

REFUSALS: Final[tuple[Refusal, ...]] = (
    Refusal(
        f"variables.annotations.all(k, !k.startsWith('tierline.io/') || k in {_listed(KNOWN)})",
        "the pod has an annotation of tierline.io that does not exist; there are "
        + ", ".join(name.removeprefix("tierline.io/") for name in KNOWN),
        lambda pod: any(
            key.startswith("tierline.io/") and key not in KNOWN for key in pod.annotations
        ),
    ),
    _OF_TASK,
    Refusal(
        f"!('{TASK}' in variables.annotations) || ({is_label(_NAME)})",
        f"the annotation {TASK} is no name of a MemTask; write at most 63 lower-case letters,"
        " digits and '-'",
        lambda pod: pod.opted_in and not is_label_text(pod.task),
    ),
    Refusal(
        f"!{_listed(INLINE)}.exists(k, k in variables.annotations)"
        f" || {_listed(INLINE_NEEDED)}.all(k, k in variables.annotations"
        f" || (k == '{INLINE_PERIOD}' && ({_NO_TIMES})))",
        f"annotations that describe a task need {_NEEDED}; write these, or name a MemTask that"
        f" exists by {TASK} alone",
        lambda pod: any(k in pod.annotations for k in INLINE) and bool(missing(pod.annotations)),
    ),
    *(_value(name, kind) for name, kind in VALUES.items()),
    Refusal(
        f"!({_TRAINS}) || ({_NO_TIMES}) || ('{_CRITICALITY}' in variables.annotations"
        f" && variables.annotations['{_CRITICALITY}'] == '{Criticality.BEST_EFFORT.value}')",
        f"the annotation {_CRITICALITY} is not valid; {TRAINS_IN_GAPS}",
        lambda pod: (
            INLINE_TRAINS in pod.annotations
            and any(k in pod.annotations for k in INLINE_TIMES)
            and pod.annotations.get(_CRITICALITY) != Criticality.BEST_EFFORT.value
        ),
    ),
    *map(_together, inline_rules()),
    Refusal(
        "size(variables.meant) > 0 && variables.meant.all(n,"
        f" {ALL_CONTAINERS_CEL}.exists(c, c.name == n))",
        f"the annotation {CONTAINERS} names no container of the pod; write names of its"
        " containers, separated by commas, or leave it out to mean all",
        lambda pod: not set(pod.meant_names) <= {placed.name for placed in pod.containers()},
    ),
    Refusal(
        _each_meant(
            f"size({_PRELOADS}) == 0 || !has({_PRELOADS}[size({_PRELOADS}) - 1].valueFrom)"
        ),
        "a container takes LD_PRELOAD from elsewhere (valueFrom), so that Tierline's library cannot"
        f" be put in front of it; write its value, or name the other containers in {CONTAINERS}",
        _taken_from_elsewhere,
    ),
    Refusal(
        _each_meant(
            f"c.?volumeMounts.orValue([]).all(m, m.mountPath != '{FOLDER}'"
            f" && !m.mountPath.startsWith('{FOLDER}/'))"
        ),
        f"a container mounts a volume at {FOLDER}, where Tierline's own folder comes; mount it"
        " elsewhere",
        _mounts_over,
    ),
    Refusal(
        f"!('{TASK}' in variables.annotations) || variables.spec.?resourceClaims.orValue([]).all(c,"
        f" c.name != '{POD_CLAIM}'"
        f" || c.?resourceClaimTemplateName.orValue('') == variables.annotations['{TASK}'])",
        f"the resource claim {POD_CLAIM} is not that of the task; remove it from"
        " spec.resourceClaims, or give it another name",
        _foreign_claim,
    ),
    Refusal(
        "!has(variables.spec.nodeName) || variables.spec.nodeName == ''",
        "spec.nodeName binds the pod to a node before its task is admitted; remove it, and select"
        " devices in the MemTask",
        lambda pod: bool(pod.spec.get("nodeName")),
    ),
    Refusal(
        "variables.spec.?os.?name.orValue('linux') == 'linux'",
        "the pod does not run on Linux (spec.os); Tierline's devices are on Linux nodes",
        lambda pod: mapping(pod.spec.get("os")).get("name", "linux") != "linux",
    ),
    Refusal(
        f"!variables.spec.?runtimeClassName.orValue('').matches(r'{_SANDBOXES}')",
        "the runtime of the pod (spec.runtimeClassName) gives containers a kernel of their own,"
        " which cannot share device memory with the node's agent; use runc, crun or nvidia",
        lambda pod: re.match(_SANDBOXES, str(pod.spec.get("runtimeClassName") or "")) is not None,
    ),
    Refusal(
        f"!({_OPTED_IN}) || "
        + _each_meant(
            "!(c.?resources.?limits.orValue({}).exists(k, k.matches(r'{gpus}'))"
            " || c.?resources.?requests.orValue({}).exists(k, k.matches(r'{gpus}')))".replace(
                "{gpus}", _GPUS
            )
        ),
        "a container takes a GPU of its own (such as nvidia.com/gpu in resources) besides the one"
        " that Tierline shares with it; remove it there, or name the other containers in"
        f" {CONTAINERS}",
        _own_gpu,
    ),
)
"""All of them; what explains the others comes first."""

WARNINGS: Final[tuple[Refusal, ...]] = (
    Refusal(
        f"!({_OPTED_IN}) || "
        + _each_meant(
            "c.?envFrom.orValue([]).size() == 0"
            f" || c.?env.orValue([]).exists(e, e.name == '{PRELOAD}')"
        ),
        "a container takes variables from a ConfigMap or Secret (envFrom); if LD_PRELOAD is one of"
        " them, or its image sets it, Tierline's hides it: write it into env, and both are loaded",
        _hides_preload,
    ),
    Refusal(
        f"!({_OPTED_IN}) || "
        + _each_meant(f"c.?resources.?claims.orValue([]).all(u, u.name == '{POD_CLAIM}')"),
        "a container uses another resource claim besides Tierline's; if that is a GPU, it has two"
        " owners, and Tierline's memory and deadlines do not count the other: remove one",
        _other_claim,
    ),
)
"""What may be wrong, which nobody can see in a pod: told, and taken."""
