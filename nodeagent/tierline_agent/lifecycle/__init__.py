"""How an agent takes over from the one before, and what the loss of a device costs."""
