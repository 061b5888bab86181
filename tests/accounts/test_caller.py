"""Which models a caller may use, of its team's and its key's."""

import pytest

from accounts.caller import narrowed


@pytest.mark.parametrize(
    ("of_team", "of_key", "both"),
    [
        (None, None, None),
        ({"a"}, None, {"a"}),
        (None, ["a"], {"a"}),
        ({"a", "b"}, ["b", "c"], {"b"}),
        ({"a"}, ["b"], set()),
        (None, [], set()),
        ({"openai/*"}, ["openai/gpt-4o", "claude"], {"openai/gpt-4o"}),
        ({"openai/gpt-4o", "claude"}, ["openai/*"], {"openai/gpt-4o"}),
        ({"openai/*"}, ["openai/*"], {"openai/*"}),
        ({"*"}, ["a"], {"a"}),
    ],
)
def test_a_key_narrows_its_team_and_never_widens_it(
    of_team: set[str] | None, of_key: list[str] | None, both: set[str] | None
) -> None:
    """A wildcard on either side allows what it stands for on the other."""
    assert narrowed(None if of_team is None else frozenset(of_team), of_key) == both
