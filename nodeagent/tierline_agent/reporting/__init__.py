"""The agent's reports of its node: the MemNode, the administrator's snapshot, the gauges."""
