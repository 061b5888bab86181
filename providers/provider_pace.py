"""The time for which a provider's pace (429) keeps callers away. Pure; times are given."""

from typing import Final

from providers.failure_streak import FAILING_AFTER

_FIRST_PACE_S: Final = 1.0
_LONGEST_GUESSED_PACE_S: Final = 30.0
"""A provider that refuses for its pace without saying for how long is left alone for 1 s, and twice as long each time."""


class ProviderPace:
    """The time for which the provider's pace keeps callers from a deployment, or from one name there.

    What one team's request met may be all its own: a prompt that is larger than what is left of a minute's tokens is refused where
    others are answered. So the first refusal keeps its team away, and one of another team meanwhile keeps everyone away.
    """

    __slots__ = ("team", "team_until", "times", "until", "why")

    def __init__(self) -> None:
        self.until = 0.0
        """Time until which everyone is kept away."""
        self.team = ""
        self.team_until = 0.0
        self.why = ""
        self.times = 0
        """Refusals for its pace since the last success."""

    @property
    def is_set(self) -> bool:
        """True when it keeps anybody away, or did when it was looked at last."""
        return self.until > 0.0 or self.team_until > 0.0

    def ends_at(self, team: str) -> float:
        """Return the time from which the team may call again."""
        return max(self.until, self.team_until) if team and team == self.team else self.until

    def lengthen(self, now: float, wait_s: float | None, why: str, most_s: float, times_before: int, team: str) -> None:
        """Set aside for `wait_s` seconds, or for a guess. `times_before` is of when the attempt began: what many attempts at
        once are told is one refusal, and makes one guess.
        """
        guess_s = min(_FIRST_PACE_S * 2 ** min(times_before, 8), _LONGEST_GUESSED_PACE_S)
        if wait_s is None:
            wait_s = guess_s
        elif times_before >= FAILING_AFTER:
            # Too short a time, again and again, is no answer.
            wait_s = max(wait_s, _FIRST_PACE_S)
        self.times = max(self.times, times_before + 1)
        until = now + min(wait_s, most_s)
        self.why = why
        if team and self.until <= now and (self.team == team or self.team_until <= now):
            self.team, self.team_until = team, max(until, self.ends_at(team))
        else:
            self.until = max(until, self.until)

    def hold(self, now: float, wait_s: float, why: str) -> None:
        """Keep everyone away for `wait_s` seconds, by a limit of the operator's rather than the provider's word."""
        self.until = max(self.until, now + wait_s)
        self.why = why

    def forget(self, now: float) -> None:
        """Forget the times that are over."""
        if self.until <= now:
            self.until = 0.0
        if self.team_until <= now:
            self.team_until = 0.0
