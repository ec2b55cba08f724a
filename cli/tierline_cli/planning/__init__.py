"""The planning commands: their input, and their questions to the planner."""
