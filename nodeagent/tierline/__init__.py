"""The user's API: a program may tell Tierline more; ordinary PyTorch needs none of it.

    for release in tierline.periodic():      # keeps the task's period
        output = model(next(inputs))         # the outermost forward is the job

    with tierline.job(deadline=0.05):        # or: this block is the job
        ...

    model = tierline.captured(model)         # on a GPU: run a static model as one CUDA graph
    model = tierline.planned(model, "4GiB")  # train within a bound on memory

Without Tierline around the process, `job` does nothing and `periodic` needs a `period`.
"""

from tierline.captured import captured
from tierline.job import job
from tierline.periodic import Release, periodic
from tierline.planned import planned
from tierline_torch.errors import TierlineError

__all__ = ["Release", "TierlineError", "captured", "job", "periodic", "planned"]
