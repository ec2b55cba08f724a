"""Fast memory: the pool of a device's extents, arenas of weights, workspaces."""
