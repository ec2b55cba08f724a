"""The books of the devices: seats, what they take, and the proof that they hold together."""
