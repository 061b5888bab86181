"""The `sign_in` section."""

from typing import Any

import pytest
from pydantic import ValidationError

from accounts.people.sign_in_config import SignInSection


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("https://weighbridge.example.com", "https://weighbridge.example.com"),
        ("https://weighbridge.example.com:8443/", "https://weighbridge.example.com:8443"),
        ("http://127.0.0.1:8080", "http://127.0.0.1:8080"),
        ("http://localhost:8080", "http://localhost:8080"),
        ("http://[::1]:8080", "http://[::1]:8080"),
    ],
)
def test_an_origin_is_taken(given: str, kept: str) -> None:
    """https, or this very machine."""
    assert SignInSection(public_url=given).public_url == kept


@pytest.mark.parametrize(
    "bad",
    ["http://weighbridge.example.com", "weighbridge.example.com", "https://u:p@example.com", "https://example.com/x",
     "https://example.com?x=1", "https://example.com#x", "javascript:alert(1)", "https://", ""],
)  # fmt: skip
def test_what_is_no_safe_origin_is_refused(bad: str) -> None:
    """A link or a cookie must not travel in the open."""
    with pytest.raises(ValidationError, match="public_url"):
        SignInSection(public_url=bad)


@pytest.mark.parametrize(
    "bad",
    [{"idle_s": 7200, "absolute_s": 3600}, {"idle_s": 0}, {"absolute_s": 10**9}, {"failures": 0}, {"lock_s": 0},
     {"link_s": 10**7}, {"password_min_chars": 4}, {"unknown": 1}],
)  # fmt: skip
def test_limits_are_bounded(bad: dict[str, Any]) -> None:
    """Nothing can be set to never or for ever."""
    with pytest.raises(ValidationError):
        SignInSection(**bad)
