"""Plans of a forward or of a training step: captured from PyTorch, and run by an executor."""
