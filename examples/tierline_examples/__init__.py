"""Programs that a newcomer runs first: ordinary PyTorch, and one loop over releases."""
