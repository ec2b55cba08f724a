"""A run on this machine: its agent, its programs, what is measured of them."""
