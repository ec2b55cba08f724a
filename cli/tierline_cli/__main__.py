"""`python -m tierline_cli`: the same as `tierline`."""

from tierline_cli.start import tierline

tierline()
