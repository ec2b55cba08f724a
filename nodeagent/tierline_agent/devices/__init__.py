"""Devices own the memory that extents are made of. `base` is the interface, `cpu` the host."""
