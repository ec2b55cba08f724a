"""The command line: Tierline on one machine, on top of planner and agent."""
