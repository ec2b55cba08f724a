"""The agent's lease policy, as the simulator asks for it."""

from collections.abc import Iterable

from tierline_agent.policy.leases import Ask, Claim, Grant, Keep, Rank, decide, yields
from tierline_operator.simulation.device import Waiting

_ANY_NS = 0
"""No program of the simulator comes before its time."""


class AgentPolicy:
    """See `tierline_operator.simulation.device.Policy`."""

    def first(self, waiting: Iterable[Waiting]) -> int:
        """The key of the job to which the agent grants the free lease."""
        match decide(None, map(_claim, waiting), now_ns=_ANY_NS):
            case Grant(key):
                return key
            case Ask() | Keep():
                raise ValueError("nobody waits for the lease")

    def yields(self, holder: Waiting, waiting: Iterable[Waiting]) -> bool:
        """Whether the agent has a holder give the lease away at a gate."""
        return yields(_claim(holder), map(_claim, waiting), now_ns=_ANY_NS)


def _claim(job: Waiting) -> Claim:
    rank = Rank.WARMUP if job.starts else Rank.BEST_EFFORT
    rank = Rank.GUARANTEED if job.guaranteed else rank
    return Claim(job.key, job.deadline_ns, job.arrival, rank)
