"""The tiers of a local run: which are wanted, where they lie, how large they must be."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from tierline_agent.tiers.format import smallest_medium
from tierline_api.objects.memprofile import MemProfile
from tierline_api.objects.memtask import MemTask
from tierline_api.objects.plan import Tier
from tierline_cli.errors import EXIT_BAD_INPUT, CommandError
from tierline_cli.local.agent import TierSpec
from tierline_operator.planning import from_api

_SPARE_EXTENTS = 4
_TMPFS = Path("/dev/shm")  # noqa: S108 - the dram tier must outlive the agent and stay in memory


def check_tiers(tasks: Sequence[MemTask], given: Mapping[Tier, Path]) -> None:
    """Look whether each tier that the tasks name has a place.

    Raises:
        CommandError: a tier has no path and cannot be made up, or its path cannot be a file's; or a
            path is given for a tier that no task names.
    """
    wanted = _wanted(tasks)
    for tier, named in given.items():
        if tier not in wanted:
            raise CommandError(
                f"--{tier.value} {named}: none of the tasks has the tier {tier.value}; leave the "
                f"option out, or write {tier.value} in spec.swap.tiers",
                EXIT_BAD_INPUT,
            )
    for tier in sorted(wanted):
        path = given.get(tier)
        if path is None and tier is Tier.PMEM:
            raise CommandError(
                f"a task wants the tier {tier.value}; name its device or file with --{tier.value}",
                EXIT_BAD_INPUT,
            )
        if path is not None and (path.is_dir() or not path.parent.is_dir()):
            wrong = path if path.is_dir() else path.parent
            what = "is a folder" if path.is_dir() else "is no folder"
            raise CommandError(
                f"--{tier.value} {path}: {wrong} {what}; name a file or a device", EXIT_BAD_INPUT
            )


def _wanted(tasks: Sequence[MemTask]) -> set[Tier]:
    return {tier for task in tasks for tier in task.spec.swap.tiers}


def tiers_for(
    tasks: Sequence[MemTask],
    profiles: Mapping[str, MemProfile],
    extent_bytes: int,
    work_dir: Path,
    given: Mapping[Tier, Path],
) -> list[TierSpec]:
    """The tiers that the tasks name, each with room for all their weights.

    `given` are paths that a person named (`check_tiers`); a tier without one is a temporary file.
    """
    extents = sum(
        from_api.demand_of(task, profiles[task.name], extent_bytes).layout.extent_count
        for task in tasks
    )
    size_bytes = smallest_medium(extent_bytes, extents + _SPARE_EXTENTS * len(tasks))
    made_up = {Tier.DRAM: _TMPFS / f"{work_dir.name}.dram", Tier.NVME: work_dir / "nvme.store"}
    tiers = []
    for tier in sorted(_wanted(tasks)):
        path = given.get(tier)
        if path is None:
            tiers.append(TierSpec(tier.value, made_up[tier], size_bytes, temporary=True))
        else:
            # a device is used whole, a file is made to fit
            whole = path.is_char_device() or path.is_block_device()
            tiers.append(TierSpec(tier.value, path, 0 if whole else size_bytes, temporary=False))
    return tiers
