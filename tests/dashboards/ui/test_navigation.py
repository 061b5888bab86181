"""The menu says what its reader will find there."""

from accounts.access import Right
from dashboards.ui.navigation import menu

TWO = {"support": "Customer support", "handbook": "Handbook"}


def _everything(right: Right) -> bool:
    return True


def _nothing(right: Right) -> bool:
    return False


def test_who_sees_only_some_teams_is_not_promised_all_of_them() -> None:
    """An administrator of two teams reads "Your teams", the organisation's readers "All teams"."""
    (mine,) = menu(_nothing, "/dashboard/teams", None, TWO)
    assert [(each.label, each.is_here) for each in mine.entries] == [
        ("Your teams", True),
        ("Ask", False),
        ("Batches", False),
    ]
    assert menu(_everything, "/dashboard/teams", None, TWO)[0].entries[0].label == "All teams"


def test_the_only_team_stands_in_the_menu_itself() -> None:
    """Its pages come first, and there is no list of one."""
    team, rest = menu(_nothing, "/dashboard/teams/support/keys", None, {"support": "Customer support"})
    assert team.label == "Customer support"
    assert [each.label for each in team.entries if each.is_here] == ["Keys"]
    assert [each.label for each in rest.entries] == ["Ask", "Batches"]
