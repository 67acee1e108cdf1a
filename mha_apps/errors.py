"""The one exception for input that a user can put right, and the one warning about input that is used all the same."""

from __future__ import annotations

import warnings


class InputError(ValueError):
    """Input that cannot be used: a file, a flag, a value.

    The message is one line that names the file, the place in it and the remedy. The command line prints it
    without a traceback and exits with code 2; from Python it is an ordinary ``ValueError``.
    """

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))


class InputWarning(UserWarning):
    """Something about the input that a user should know, though it could be used.

    The command line prints each on standard error and lists them under ``warnings`` in ``--json``; from Python they
    are ordinary warnings.
    """


def warn(message: str) -> None:
    """Issue an :class:`InputWarning`, on one line, in the name of the function that called the caller."""
    warnings.warn(" ".join(message.split()), InputWarning, stacklevel=3)
