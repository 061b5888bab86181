"""The header x-weighbridge-cache."""

import pytest

from proxy.cache.wishes import Wishes, wishes_of
from proxy.errors import BadRequest


@pytest.mark.parametrize(
    ("header", "wishes"),
    [
        (None, Wishes()),
        ("ttl=60", Wishes(ttl_s=60)),
        ("TTL=60 , No-Store", Wishes(ttl_s=60, stores=False)),
        ("no-cache", Wishes(reads=False)),
        ("refresh,ttl=1", Wishes(ttl_s=1, reads=False)),
        ("no-cache, no-store", Wishes(reads=False, stores=False)),
    ],
)
def test_what_a_caller_may_say(header: str | None, wishes: Wishes) -> None:
    """In any order and any letters."""
    assert wishes_of(header) == wishes


@pytest.mark.parametrize(
    "header", ["", "on", "ttl", "ttl=", "ttl=-1", "ttl=1.5", "ttl=1;2", "ttl=٣", "ttl=" + "9" * 10, "no-cache;"]
)
def test_what_it_may_not(header: str) -> None:
    """It is told so: a word that did nothing would be taken for one that did."""
    with pytest.raises(BadRequest, match="x-weighbridge-cache"):
        wishes_of(header)
