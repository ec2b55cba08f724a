"""The agent on Kubernetes: the node's DRA driver, the pods' folders, and what it reports.

A client of the agent's own administrator socket, as `tierline run` is: it holds nothing of the
agent and decides nothing that the operator decides. It runs in a thread with an event loop of its
own, so that an answer of the API server never stands before a lease.

The truth about what is granted is the API server's: claims with this node's label, allocated by the
operator. What lies on disk and what is registered with the agent is made from them, piece by piece
in an order in which every state between two pieces is one that the next start understands
(`prepared_claims`). Nothing else is written down, so there is nothing to disagree with.

    grants           the grant of a claim                        pure
    description      the description of a claim for containerd   pure
    objects          MemNode, ResourceSlice, statuses            pure
    observing        observations of a pod from job records      pure
    gpus             the access of a pod to a GPU
    folders          library versions and the pods' folders      disk
    prepared_claims  prepare, unprepare, and the same again after a crash
    driver           the kubelet's calls
    kubelet          its protocols, generated
    reporting        MemNode, ResourceSlice and observations, at a bounded rate
    pulse            signs of life, in the status of the MemNode
    measuring        profiles of tasks that run alone to be measured
    judging          profiles of pods, parsed in a process of its own
    readiness        the parts that the agent's readiness waits for
    service          all of these together
    thread           the thread in which the service runs
"""
