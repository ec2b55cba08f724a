"""A pod of an ordinary PyTorch program, in a Python and with a PyTorch of the matrix."""

from __future__ import annotations

from tests import matrix
from tests.e2e.conftest import Running, pod
from tests.e2e.python_image import PROGRAM, Python, python_image

from tierline_cluster.api import Manifest

_PACKAGES = "/packages"


def torch_pod(
    cluster: Running, namespace: str, task: str, cell: matrix.Cell, program: str
) -> Manifest:
    """Return the pod of a task, called like it; the node knows its image with that program."""
    python = Python.at(matrix.python_of(cell))
    image = python_image(python, program, f"tierline.local/{task}:{cell}")
    cluster.node.import_image(image.write(cluster.node.folder / f"{task}.tar"))
    wanted = pod(namespace, task, "", restartPolicy="Always")
    wanted["metadata"]["annotations"] = {"tierline.io/task": task}
    (container,) = wanted["spec"]["containers"]
    container |= {
        "image": image.reference,
        "command": ["/bin/python3", PROGRAM],
        "env": [{"name": "PYTHONPATH", "value": _PACKAGES}],
        "volumeMounts": [{"name": "packages", "mountPath": _PACKAGES, "readOnly": True}],
    }
    folder = {"path": str(python.packages), "type": "Directory"}
    wanted["spec"]["volumes"] = [{"name": "packages", "hostPath": folder}]
    return wanted
