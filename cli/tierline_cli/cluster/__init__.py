"""`kubectl tierline`: what happens to MemTasks on a cluster, told to every user that may read them.

It reads MemTasks, MemNodes and pods as the user of the kubeconfig and changes nothing. What it says
is what operator and agents have written: it decides nothing again.
"""
