"""The commands of `tierline`, one a module."""
