"""The cost of one streamed job on the device: times, and what a preemption adds."""
