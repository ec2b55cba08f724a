"""What a task asks: of a device by its spec and profile, of a node by its pods."""
