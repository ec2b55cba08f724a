"""Backends run a process's jobs: by the agent, or with an observer that only measures."""
