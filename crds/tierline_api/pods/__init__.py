"""What becomes of a pod that opts in: one definition for the cluster and for `tierline inject`.

    view      what is read of a pod
    changes   what is added to it: each change as CEL for the API server and as Python
    refusals  what cannot work: each rule as CEL and as Python, with its sentence
    inline_rules  the rules of a MemTask, derived for one that annotations describe
    inject    both in Python, over manifests of any kind that holds pods
    policies  both as admission policies, and the DeviceClass
    agents    the policy by which a node's agent writes only its own node's objects
    notes     the policy by which only the operator notes what a claim was granted
    staying   the policy by which a MemTask stays until its pods have ended
    described the policy by which a MemTask of annotations is changed in these alone
    scaling   the policy by which only a MemTask with a template is scaled
    installed all that the chart installs of these
    generate  writes them as YAML for the chart

Each change and each rule says the same twice, side by side; tests on a real API server hold the two
against each other.
"""
