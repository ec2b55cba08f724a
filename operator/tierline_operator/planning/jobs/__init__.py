"""What one job takes of the device, streamed: times, and what a preemption adds."""
