"""Why a set is refused, and what would help, in sentences."""
