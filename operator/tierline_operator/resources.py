"""The kinds that the operator watches or writes."""

from typing import Final

from tierline_api.base import API_VERSION
from tierline_api.optin import TASK
from tierline_operator.kube import Resource

MEMTASK: Final = Resource(API_VERSION, "MemTask", "memtasks")
MEMPROFILE: Final = Resource(API_VERSION, "MemProfile", "memprofiles")
MEMNODE: Final = Resource(API_VERSION, "MemNode", "memnodes", namespaced=False)
MEMQUOTA: Final = Resource(API_VERSION, "MemQuota", "memquotas")
CLAIM: Final = Resource("resource.k8s.io/v1", "ResourceClaim", "resourceclaims", selector=TASK)
TEMPLATE: Final = Resource(
    "resource.k8s.io/v1", "ResourceClaimTemplate", "resourceclaimtemplates", selector=TASK
)
POD: Final = Resource("v1", "Pod", "pods", selector=TASK)
DEPLOYMENT: Final = Resource("apps/v1", "Deployment", "deployments", selector=TASK)
REPLICASET: Final = Resource("apps/v1", "ReplicaSet", "replicasets")
LEASE: Final = Resource("coordination.k8s.io/v1", "Lease", "leases")
EVENT: Final = Resource("events.k8s.io/v1", "Event", "events")

WATCHED: Final = (
    *(MEMNODE, MEMQUOTA, MEMPROFILE, MEMTASK),
    *(CLAIM, TEMPLATE, DEPLOYMENT, POD),
)
"""In the order in which a new leader reads them."""
