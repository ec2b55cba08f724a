"""The agent's lease policy, as the simulator asks for it."""

from collections.abc import Iterable

from tierline_agent.policy.leases import Ask, Claim, Grant, Keep, Rank, decide, yields
from tierline_operator.simulation.device import Waiting


class AgentPolicy:
    """See `tierline_operator.simulation.device.Policy`."""

    def first(self, waiting: Iterable[Waiting]) -> int:
        """Whom the agent grants the free lease."""
        match decide(None, map(_claim, waiting)):
            case Grant(key):
                return key
            case Ask() | Keep():
                raise ValueError("nobody waits for the lease")

    def yields(self, holder: Waiting, waiting: Iterable[Waiting]) -> bool:
        """Whether the agent has a holder give the lease away at a gate."""
        return yields(_claim(holder), map(_claim, waiting))


def _claim(job: Waiting) -> Claim:
    rank = Rank.GUARANTEED if job.guaranteed else Rank.BEST_EFFORT
    return Claim(job.key, job.deadline_ns, job.arrival, rank)
