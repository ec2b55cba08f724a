"""Plans of a forward or of a training step under a bound on device memory.

Pure: no torch, no clock, no I/O. `graph` is what is planned, `plan` is the answer.
"""
