"""The cluster as the operator has seen it, typed and never trusted to be whole."""
