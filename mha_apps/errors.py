"""The one exception for input that a user can put right, the one warning about input that is used all the same, and
the name that a mistyped one was meant to be."""

from __future__ import annotations

import contextlib
import difflib
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any


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


def nearest(name: str, names: Iterable[str]) -> str | None:
    """The one of ``names`` that is most like ``name``, whatever the case; None when none is."""
    folded = {each.casefold(): each for each in names}
    near = difflib.get_close_matches(name.casefold(), folded, n=1)
    return folded[near[0]] if near else None


@contextlib.contextmanager
def collected(show: Callable[[str], None] | None = None) -> Iterator[list[str]]:
    """The text of each :class:`InputWarning` that is issued inside, once each, in a list that grows.

    Args:
        show: is given each of them at once; they are shown as any warning when None.
    """
    found: list[str] = []
    usual = warnings.showwarning

    def tell(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
        if not issubclass(category, InputWarning):
            usual(message, category, *place, **more)
        elif str(message) not in found:
            found.append(str(message))
            if show is None:
                usual(message, category, *place, **more)
            else:
                show(found[-1])

    with warnings.catch_warnings():
        warnings.simplefilter("always", InputWarning)
        warnings.showwarning = tell
        yield found
