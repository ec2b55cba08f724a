"""What the operator has seen of the cluster, typed and never trusted to be whole."""
