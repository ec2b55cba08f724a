"""How a command ends, and the one error that carries a sentence for its user.

Exit codes: 0 done; 1 a program or the agent failed; 2 bad input; 3 infeasible (nothing was
started); 4 it ran, but a deadline was missed or an output differed.
"""

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_BAD_INPUT = 2
EXIT_INFEASIBLE = 3
EXIT_BROKEN_PROMISE = 4


class CommandError(Exception):
    """One sentence for the user, and the exit code that goes with it."""

    def __init__(self, message: str, exit_code: int = EXIT_FAILED) -> None:
        super().__init__(message)
        self.exit_code = exit_code
