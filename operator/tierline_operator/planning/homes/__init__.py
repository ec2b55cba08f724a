"""Which lower tier holds each extent of each task."""
