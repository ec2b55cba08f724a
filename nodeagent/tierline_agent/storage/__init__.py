"""The tiers of a node with the links to them, and how the links are measured."""
