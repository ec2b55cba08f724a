"""Whether the hostile suites find the faults that the agent once had.

Each mend is taken out of a copy of the agent's source (`mends`), and the suite that is to find it
runs with that copy (`copies`): it must fail. A suite that passes without a mend protects nothing.
"""
