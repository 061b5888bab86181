"""Refused requests between the ledger's: one order, no row twice, none left out."""

from cost.reports.recent import RecentPage, RecentRequest
from dashboards.requests.refused import merged
from proxy.settle.refusals.counting import RefusedRequest
from tests.proxy.settle.refusals.test_refused_requests import NOW_US, refused


def answered(number: int) -> RecentRequest:
    return RecentRequest(request_id=f"a{number}", attempts=())


def ids(found: tuple[RecentRequest | RefusedRequest, ...]) -> list[str]:
    return [each.request_id for each in found]


def test_both_are_in_the_order_of_time() -> None:
    """And where a page ends the next one goes on, for both."""
    ledger = RecentPage(requests=(answered(5), answered(2)), places=((NOW_US + 5, "a5"), (NOW_US + 2, "a2")))
    own = [refused(4), refused(3), refused(1)]
    whole = merged(ledger, own, 50)
    assert (ids(whole.requests), whole.next_place) == (["a5", "r00004", "r00003", "a2", "r00001"], None)
    first = merged(ledger, own, 3)
    assert (ids(first.requests), first.next_place) == (["a5", "r00004", "r00003"], (NOW_US + 3, "r00003"))


def test_what_is_older_than_the_search_went_is_for_the_next_page() -> None:
    """Otherwise requests of the ledger would come after it."""
    bound = (NOW_US + 2, "x")
    found = merged(RecentPage(requests=(), next_place=bound), [refused(3), refused(1)], 50)
    assert (ids(found.requests), found.next_place) == (["r00003"], bound)
