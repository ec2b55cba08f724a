"""How a pod opts in, and how its claim is told apart: the names that all sides must agree on.

A pod says `tierline.io/task: NAME`. The admission policy adds the gate, the label and the claim;
the claim comes from the ResourceClaimTemplate that the operator keeps under the task's own name;
the operator allocates it and removes the gate; the node's agent finds the claims of its node by
label. `tierline inject` writes into a manifest what the policy adds. Only names here, no decisions.
"""

from enum import StrEnum
from typing import Final

TASK: Final = "tierline.io/task"
"""Annotation of a pod: the MemTask it runs. Label of pods, claims and claim templates: the same."""
MADE_BY: Final = "app.kubernetes.io/managed-by"
MANAGER: Final = "tierline"
"""Label of the objects that the operator makes of a task's name, in addition to `TASK`."""
GATE: Final = "tierline.io/admission"
"""The scheduling gate that holds an opted-in pod until its claim is allocated."""
FINALIZER: Final = GATE
"""Keeps a MemTask until none of its pods holds a claim."""
POD_CLAIM: Final = "tierline"
"""The entry of a pod's `spec.resourceClaims`."""

DRIVER: Final = "tierline.io"
"""The DRA driver, and the DeviceClass."""
REQUEST: Final = "device"
"""The one request of each claim."""
FAST_MEMORY: Final = "fastMemory"
"""The capacity of a device that claims consume: a C identifier, as DRA wants."""

NODE_LABEL: Final = "tierline.io/node"
"""Label of an admitted claim: its node (`label_value`), so that an agent watches no claims but its
own. Annotation of a MemProfile: the node on which it was measured."""
PLAN: Final = "tierline.io/plan"
"""Annotation of an admitted claim: its Plan in JSON. Once the claim is allocated its pod holds it:
only what is predicted may change."""
TERMS: Final = "tierline.io/terms"
"""Annotation of an admitted claim: the Terms granted, in JSON; they may change as well."""
STANDING: Final = "tierline.io/standing"
"""Annotation of an admitted claim: how its pod stands, a `Standing`."""
ORDER: Final = "tierline.io/order"
"""Annotation of an admitted claim: counts admissions; a restarted operator plans in this order."""

INLINE: Final = {
    "tierline.io/period": ("realtime", "period"),
    "tierline.io/deadline": ("realtime", "deadline"),
    "tierline.io/criticality": ("realtime", "criticality"),
    "tierline.io/execution-time": ("realtime", "executionTime"),
    "tierline.io/training": ("training",),
    "tierline.io/budget": ("memory", "budget"),
    "tierline.io/reserved": ("memory", "reserved"),
    "tierline.io/tiers": ("swap", "tiers"),
    "tierline.io/policy": ("swap", "policy"),
    "tierline.io/on-budget-exceeded": ("swap", "onBudgetExceeded"),
    "tierline.io/device": ("device", "kind"),
    "tierline.io/model": ("device", "model"),
    "tierline.io/profile": ("profile",),
}
"""Annotations of a pod from which the operator makes the MemTask that `tierline.io/task` names, and
where each belongs in its spec. Tiers are separated by commas; `training` is "true"."""
INLINE_NEEDED: Final = ("tierline.io/period", "tierline.io/budget", "tierline.io/device")
"""With one inline annotation, these must be there."""
INLINE_PERIOD: Final = INLINE_NEEDED[0]
"""But for this one, if the task trains and nothing is said of its times."""
INLINE_TIMES: Final = tuple(name for name, path in INLINE.items() if path[0] == "realtime")
INLINE_TRAINS: Final = "tierline.io/training"


class Standing(StrEnum):
    """How a pod with a claim stands on its device."""

    PLANNED = "Planned"
    """It runs by its plan, which is proven together with all others of the device."""
    PROFILING = "Profiling"
    """It is observed and measured: without a plan it has its device alone; with one it takes the
    lease for each job, and no job may have the device for longer than its terms say."""
    DEMOTED = "Demoted"
    """Its deadline no longer holds together with those of the others; its jobs run only when nobody
    else waits."""
    LOST = "Lost"
    """Not even that holds; it gets no lease."""
    MEASURED = "Measured"
    """It was measured, and gets its plan when others have been measured on the device, too. The
    operator's alone: to its node it goes on being profiled until then."""
    UNMEASURED = "Unmeasured"
    """Its measuring was given up: it was not measured in time while others waited, or there is no
    room for that any more; it gets no lease."""
