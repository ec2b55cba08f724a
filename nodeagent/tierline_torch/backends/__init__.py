"""What runs a process's jobs: the agent, or an observer that only measures."""
