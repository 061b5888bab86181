"""Whose failures in a row are, as a table."""

import pytest

from providers.failure_streak import EVERYONE, NO_STREAK, Scope

ANN: Scope = ("team_a", "key_ann")
AMY: Scope = ("team_a", "key_amy")
BOB: Scope = ("team_b", "key_bob")
EVE: Scope = ("team_c", "key_eve")


@pytest.mark.parametrize(
    ("failed", "whose"),
    [
        ((), EVERYONE),
        ((ANN, ANN), ANN),
        ((ANN, AMY), ("team_a", "")),
        ((ANN, BOB), ANN),
        ((ANN, BOB, EVE), EVERYONE),
        ((ANN, BOB, BOB), EVERYONE),
        ((ANN, EVERYONE), EVERYONE),
    ],
)
def test_a_streak_is_blamed_on_the_fewest_that_explain_it(failed: tuple[Scope, ...], whose: Scope) -> None:
    """A key, a team, or everyone once two failures of other teams, or one of no request, are among them."""
    streak = NO_STREAK
    for scope in failed:
        streak = streak.with_one(scope)
    assert (streak.failures, streak.whose) == (len(failed), whose)
