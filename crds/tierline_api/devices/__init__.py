"""Kinds of devices, and what they and the run time add to what is planned; one definition each."""
