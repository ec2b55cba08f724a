"""Pure placement over all nodes: which device and plan each pod gets; who waits, and why."""
