"""Which job has the device: the lease, the executor of jobs, the prefetch for the next one."""
