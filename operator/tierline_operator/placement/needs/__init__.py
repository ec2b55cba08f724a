"""The needs of a task: of a device by its spec and profile, of a node by its pods."""
