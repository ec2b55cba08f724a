"""Telemetry of the agent: metrics, job records, probes, the log."""
