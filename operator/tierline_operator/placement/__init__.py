"""Pure placement over all nodes: which device and plan each pod gets; which tasks wait, and why."""
