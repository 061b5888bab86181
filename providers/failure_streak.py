"""Failures in a row and whose they are: one caller's, one team's, or everyone's. Pure."""

from typing import Final

import msgspec

FAILING_AFTER: Final = 3
"""So many failures in a row, with no success between them, are no accident: from then on a deployment counts as failing."""
_OTHERS: Final = 2
"""So many failures of other teams show that it is not the first team's requests: one alone is an accident."""

Scope = tuple[str, str]
"""A team's id and a key's id; without a key it is the whole team, without both it is everyone."""
EVERYONE: Final[Scope] = ("", "")


def join_scopes(known: Scope | None, another: Scope) -> Scope:
    """Return the least scope that holds both."""
    if known is None or known == another:
        return another
    return (known[0], "") if known[0] == another[0] else EVERYONE


class FailureStreak(msgspec.Struct, frozen=True):
    """A number of failures in a row."""

    failures: int = 0
    blame: Scope | None = None
    """The least scope that holds the failures of the first team among them."""
    others: int = 0
    """Failures of other teams."""
    is_everyones: bool = False
    """True when one of them was caused by no request."""

    def with_one(self, scope: Scope) -> "FailureStreak":
        """Return one more failure, of a request of this scope or, of everyone's, of none."""
        if scope == EVERYONE:
            return msgspec.structs.replace(self, failures=self.failures + 1, is_everyones=True)
        if self.blame is not None and self.blame[0] != scope[0]:
            return msgspec.structs.replace(self, failures=self.failures + 1, others=self.others + 1)
        return msgspec.structs.replace(self, failures=self.failures + 1, blame=join_scopes(self.blame, scope))

    @property
    def whose(self) -> Scope:
        """The callers that the streak concerns."""
        if self.is_everyones or self.others >= _OTHERS or self.blame is None:
            return EVERYONE
        return self.blame


NO_STREAK: Final = FailureStreak()
