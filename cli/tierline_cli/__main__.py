"""`python -m tierline_cli`: the same as `tierline`."""

from tierline_cli.main import main

main()
