"""The helpers of these tests, without a browser."""

import pytest

from tests.browser.test_every_page import kind_of


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/dashboard", "/dashboard"),
        ("/dashboard/teams/support/keys/key_a1b2?sort=-cost", "/dashboard/teams/{team}/keys/{id}"),
        ("/dashboard/teams/legal", "/dashboard/teams/{team}"),
        ("/dashboard/audit/12", "/dashboard/audit/{id}"),
        ("/dashboard/finance/prices/gpt-4o", "/dashboard/finance/prices/{name}"),
        ("/dashboard/finance/month?month=2026-10", "/dashboard/finance/month"),
    ],
)
def test_pages_of_one_kind_are_one(path: str, kind: str) -> None:
    """What is in an address only to name one of many is left out."""
    assert kind_of(path) == kind
