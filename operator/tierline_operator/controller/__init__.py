"""The leader's loop: see, decide, write; and what it writes."""
