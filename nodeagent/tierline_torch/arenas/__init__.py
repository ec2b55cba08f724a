"""Weights in an arena of the agent: what lies where, and the gates around their readers."""
