"""The device of a run on this machine: what the agent is told of it, and what programs get.

On a GPU the client library is preloaded into a task's program, because it gates the program's
launches; on the CPU the plugin loads it.
"""

import os
from dataclasses import dataclass
from typing import Any

from tierline_agent.devices.cpu import processor_name
from tierline_api.devices.extents import USUAL_EXTENT_BYTES
from tierline_api.objects.memtask import MemTask
from tierline_api.objects.plan import Plan
from tierline_cli.errors import EXIT_BAD_INPUT, CommandError
from tierline_client.library import library_path


@dataclass(frozen=True)
class Place:
    """A kind of device, and on a GPU which one."""

    kind: str = "cpu"
    """`cpu` or `cuda`."""
    gpu: int = 0
    """The GPU's number, by bus."""

    @property
    def extent_bytes(self) -> int:
        """The size of an extent where none is chosen."""
        return USUAL_EXTENT_BYTES[self.kind]

    @property
    def settings(self) -> dict[str, Any]:
        """The agent's settings for it, sizes left out."""
        return {"kind": "cuda", "index": self.gpu} if self.kind == "cuda" else {"kind": "cpu"}

    def environment(self, task: MemTask) -> dict[str, str]:
        """Environment variables of a task's program on it."""
        others = os.environ.get("LD_PRELOAD")
        own = str(library_path())
        preloaded = {"LD_PRELOAD": f"{own}:{others}" if others else own}
        if self.kind == "cpu":
            training = task.spec.training
            return preloaded if training is None else preloaded | training.environment()
        return preloaded | {
            "TIERLINE_DEVICE": "cuda",
            "TIERLINE_EXECUTION": task.spec.device.execution.value,
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
            "CUDA_VISIBLE_DEVICES": str(self.gpu),
        }

    def memory_environment(self, task: MemTask, plan: Plan) -> dict[str, str]:
        """Environment variables about memory, for the library in a program swapped whole."""
        words = task.spec.swap.environment(plan) if self.kind == "cuda" else {}
        return words and {
            **words,
            "TIERLINE_BUDGET": str(task.spec.memory.budget_bytes),
            "TIERLINE_ON_EXCEEDED": task.spec.swap.on_budget_exceeded.value,
        }

    def product(self) -> str:
        """The hardware's own name, as MemNode reports it.

        Raises:
            CommandError: there is no such GPU.
        """
        return self._gpu_name() if self.kind == "cuda" else processor_name()

    def _gpu_name(self) -> str:
        import pynvml  # noqa: PLC0415  # only where a GPU is asked for

        try:
            pynvml.nvmlInit()
            return str(pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(self.gpu)))
        except pynvml.NVMLError as error:
            raise CommandError(
                f"cannot use GPU {self.gpu}: {error}; choose another with --gpu, or set "
                "spec.device.kind to cpu",
                EXIT_BAD_INPUT,
            ) from error
