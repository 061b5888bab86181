"""Where somebody goes after signing in."""

import string
from urllib.parse import urljoin, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dashboards.web.cookie import local_next


@pytest.mark.parametrize(
    "wanted",
    ["/dashboard", "/dashboard/teams/team_a?sort=-cost&q=a%20b", "/dashboard/teams/team_a/", "/dashboard?a=/x"],
)
def test_our_own_pages_are_kept(wanted: str) -> None:
    """With their query."""
    assert local_next(wanted) == wanted


@pytest.mark.parametrize(
    "wanted", [None, "", "/", "/v1/models", "dashboard", "/dashboard" + "x" * 2_000, "/dashbo\u0430rd"]
)
def test_anything_else_is_the_start_page(wanted: str | None) -> None:
    """Also what looks like ours."""
    assert local_next(wanted) == "/dashboard"


@given(
    st.text(alphabet=string.ascii_letters + "/\\.:@%2e?#&=\t\n -", max_size=40),
    st.sampled_from(["", "/dashboard", "/dashboard/"]),
)
def test_a_browser_stays_here(rest: str, start: str) -> None:
    """Whatever is asked for, a browser that follows it stays on this host, below /dashboard."""
    there = urlsplit(urljoin("https://here.test/dashboard/sign-in", local_next(start + rest)))
    assert (there.scheme, there.netloc) == ("https", "here.test")
    assert there.path == "/dashboard" or there.path.startswith("/dashboard/")
