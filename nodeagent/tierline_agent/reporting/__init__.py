"""What the agent says of its node: the MemNode, the administrator's snapshot, the gauges."""
