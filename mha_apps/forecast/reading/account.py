"""The account of rows and cells: a ledger that every stage passes through, so that totals add up by construction."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

OPEN = 0
"""Code of an entry that nothing has set aside."""

Indices = np.ndarray


class Ledger:
    """One code for each of ``count`` entries: 0 while it is in use, and the number of a reason once it is set aside.

    An entry is set aside once; the first reason stays. Whatever the stages do, every entry has one code, so
    ``count == used + sum(counts().values())`` always holds.
    """

    def __init__(self, count: int) -> None:
        self.codes = np.zeros(count, dtype=np.uint8)
        self.reasons: list[str] = []

    def __len__(self) -> int:
        return len(self.codes)

    def code(self, reason: str) -> int:
        """Number of ``reason``; the 250th and later share one."""
        if reason not in self.reasons:
            if len(self.reasons) >= 250:
                reason = "other"
                if reason in self.reasons:
                    return self.reasons.index(reason) + 1
            self.reasons.append(reason)
        return self.reasons.index(reason) + 1

    def set_aside(self, where: np.ndarray, reason: str) -> int:
        """Sets aside the entries ``where`` (a mask, or indices) that are still in use; returns how many these are."""
        if where.dtype == bool:
            where = np.flatnonzero(where)
        fresh = where[self.codes[where] == OPEN]
        if len(fresh):
            self.codes[fresh] = self.code(reason)
        return len(fresh)

    def overrule(self, where: np.ndarray, reason: str) -> None:
        """Sets entries aside for ``reason``, whatever was said of them before."""
        self.codes[where] = self.code(reason)

    @property
    def open(self) -> np.ndarray:
        """Mask of the entries in use."""
        return self.codes == OPEN

    @property
    def used(self) -> int:
        return int(np.count_nonzero(self.codes == OPEN))

    def counts(self) -> dict[str, int]:
        """Entries set aside, by reason, in the order in which the reasons came up."""
        totals = np.bincount(self.codes, minlength=len(self.reasons) + 1)
        return {reason: int(totals[i + 1]) for i, reason in enumerate(self.reasons) if totals[i + 1]}

    def first(self, reason: str, limit: int) -> np.ndarray:
        """Indices of the first ``limit`` entries set aside for ``reason``."""
        return np.flatnonzero(self.codes == self.code(reason))[:limit]

    @staticmethod
    def joined(ledgers: list[Ledger]) -> Ledger:
        """The entries of several ledgers, one after the other."""
        total = Ledger(sum(len(ledger) for ledger in ledgers))
        start = 0
        for ledger in ledgers:
            to = np.array([OPEN, *(total.code(reason) for reason in ledger.reasons)], dtype=np.uint8)
            total.codes[start : start + len(ledger)] = to[ledger.codes]
            start += len(ledger)
        return total


@dataclass
class Account:
    """What became of the rows of one or more files, and of the cells of their columns.

    ``lines`` holds the number of each row's line in its file, and ``files`` which of ``sources`` that is.
    """

    sources: list[str]
    lines: np.ndarray
    files: np.ndarray
    rows: Ledger
    cells: dict[str, Ledger] = field(default_factory=dict)

    @classmethod
    def of(cls, source: str, lines: np.ndarray) -> Account:
        return cls([source], lines, np.zeros(len(lines), dtype=np.int32), Ledger(len(lines)))

    def place(self, row: int) -> str:
        """``file, line n`` of a row."""
        return f"{self.sources[self.files[row]]}, line {int(self.lines[row])}"

    def close(self) -> None:
        """Puts the cells of rows that are set aside under the row's reason; the last thing to happen to an account."""
        for reason in self.rows.reasons:
            rows = np.flatnonzero(self.rows.codes == self.rows.code(reason))
            if len(rows):
                for ledger in self.cells.values():
                    ledger.overrule(rows, f"row: {reason}")

    @staticmethod
    def joined(accounts: list[Account]) -> Account:
        """One account for the rows of several files with the same columns."""
        sources = [source for account in accounts for source in account.sources]
        starts = np.cumsum([0, *(len(account.sources) for account in accounts)])
        return Account(
            sources,
            np.concatenate([account.lines for account in accounts]),
            np.concatenate([account.files + start for account, start in zip(accounts, starts, strict=False)]),
            Ledger.joined([account.rows for account in accounts]),
            {name: Ledger.joined([account.cells[name] for account in accounts]) for name in accounts[0].cells},
        )
