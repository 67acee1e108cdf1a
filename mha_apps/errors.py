"""The one exception for input that a user can put right."""

from __future__ import annotations


class InputError(ValueError):
    """Input that cannot be used: a file, a flag, a value.

    The message is one line that names the file, the place in it and the remedy. The command line prints it
    without a traceback and exits with code 2; from Python it is an ordinary ``ValueError``.
    """

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))
