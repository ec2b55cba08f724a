"""Whether an installation works: `kubectl tierline check` and `helm test`, one after the other the
operator, the admission policies, each pool's agents, and a task on each pool that is admitted and
runs one job. What is made for that is taken away again.
"""
