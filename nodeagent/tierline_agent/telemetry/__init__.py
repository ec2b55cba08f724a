"""What the agent counts and says: metrics, job records, probes, the log."""
