"""Links: one direction of one tier, its queues and its speed."""
