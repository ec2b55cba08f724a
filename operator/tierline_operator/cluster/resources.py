"""The kinds that the operator watches, and which of their objects."""

from typing import Final

from tierline_api.objects.optin import TASK
from tierline_kube import resource
from tierline_kube.resource import MEMNODE, MEMPROFILE, MEMQUOTA, MEMTASK, NODE

FIELD_MANAGER: Final = "tierline-operator"
"""The field manager of everything that the operator applies."""

CLAIM: Final = resource.CLAIM.selected(TASK)
TEMPLATE: Final = resource.TEMPLATE.selected(TASK)
POD: Final = resource.POD.selected(TASK)
DEPLOYMENT: Final = resource.DEPLOYMENT.selected(TASK)

WATCHED: Final = (
    *(NODE, MEMNODE, MEMQUOTA, MEMPROFILE, MEMTASK),
    *(CLAIM, TEMPLATE, DEPLOYMENT, POD),
)
"""All, in the order in which a new leader reads them."""
