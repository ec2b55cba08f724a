"""Errors of a cluster, told to a person."""


class ClusterError(Exception):
    """The cluster could not be built, started or removed; the message says why and what to do."""
