"""What the planning commands read and ask the planner."""
