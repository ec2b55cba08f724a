"""How a command ends, and the one error that carries a sentence for its user.

Exit codes: 0 done; 1 a program or the agent failed, or a task did no job; 2 bad input;
3 infeasible (nothing was started); 4 it ran, but a deadline was missed or an output differed.

Invariant: no traceback reaches a user. What nobody foresaw is one sentence, too; its traceback is
kept in a file for those who mend it.
"""

import signal
import sys
import tempfile
import traceback
from collections.abc import Sequence
from typing import NoReturn

import click

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


def run(
    command: click.Command,
    name: str,
    arguments: Sequence[str] | None = None,
    bad_input: tuple[type[Exception], ...] = (),
) -> NoReturn:
    """Run a command line; every mistake of a user ends as one sentence after `name`.

    Errors of the types `bad_input` are such sentences as well. A signal that asks it to end, as a
    terminal that is closed does, lets it end the programs and remove the files that it made.
    """
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as under nohup
            signal.signal(number, lambda got, _frame: sys.exit(128 + got))
    try:
        if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # until now it was `start`'s
            signal.signal(signal.SIGINT, signal.default_int_handler)
        command.main(arguments, prog_name=name, standalone_mode=False)
        if sys.stdout is not None:  # it was closed before the command began
            sys.stdout.flush()
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except click.Abort:
        sys.exit(130)
    except bad_input as error:
        click.echo(f"{name}: {error}", err=True)
        sys.exit(EXIT_BAD_INPUT)
    except CommandError as error:
        click.echo(f"{name}: {error}", err=True)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)
    except OSError as error:
        click.echo(f"{name}: {_unusable(error)}", err=True)
        sys.exit(EXIT_FAILED)
    except Exception as error:  # the invariant above
        click.echo(f"{name}: {_unforeseen(error)}", err=True)
        sys.exit(EXIT_FAILED)
    sys.exit(EXIT_OK)


def _unusable(error: OSError) -> str:
    """The system's refusal, in its words but without their number."""
    reason = error.strerror or str(error)
    places = [str(place) for place in (error.filename, error.filename2) if place is not None]
    return f"cannot use {' and '.join(places)}: {reason}" if places else reason


def _unforeseen(error: Exception) -> str:
    """The sentence about an error of ours; its traceback is written to a file."""
    with tempfile.NamedTemporaryFile(
        "w", prefix="tierline-fault-", suffix=".txt", delete=False
    ) as file:
        traceback.print_exception(error, file=file)
    words = " ".join(str(error).split()) or type(error).__name__
    return f"a fault of Tierline itself ({words}); please report it with {file.name}"
