"""The administrator's socket: its server in the agent, and its client."""
