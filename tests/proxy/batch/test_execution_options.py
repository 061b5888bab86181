"""The cheapest way that still makes it, and flex only for what has time for it."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.batch.execution_options import MOST_FLEX, Way, cheapest_way, in_flex, takes_flex, times
from proxy.batch.scheduler import EASY, Standing, slacks
from tests.proxy.batch.test_lines import claimed

CHAT = "/v1/chat/completions"


@given(
    left_s=st.none() | st.floats(-100, 86_400),
    tokens=st.integers(0, 10**7),
    speed=st.none() | st.floats(0.1, 10**5),
    generation=st.integers(1, 6),
    failures=st.integers(0, 3),
)
def test_flex_never_takes_time_that_a_deadline_needs(
    left_s: float | None, tokens: int, speed: float | None, generation: int, failures: int
) -> None:
    """It is taken exactly where no deadline is, or at most half of the time to it is needed, by lines that flex did not
    turn away before.
    """
    standing = Standing(batch_id="b", team_id="a", left_s=left_s, tokens_left=tokens, lines_left=1, idle=0.0)
    slack = slacks([standing], lambda _left_s: speed)["b"]
    spare = left_s is None or (left_s > 0 and speed is not None and tokens / speed / left_s <= EASY)
    line = claimed(generation=generation, failures=failures)
    assert takes_flex(slack, line, CHAT) == (spare and failures == 0 and generation <= MOST_FLEX)


@pytest.mark.parametrize(
    ("endpoint", "sold"),
    [
        (CHAT, True),
        ("/v1/responses", True),
        ("/v1/completions", False),
        ("/v1/embeddings", False),
        ("/v1/messages", False),
    ],
)
def test_flex_is_asked_for_where_its_api_has_it(endpoint: str, sold: bool) -> None:
    standing = Standing(batch_id="b", team_id="a", left_s=None, tokens_left=1, lines_left=1, idle=0.0)
    assert takes_flex(slacks([standing], lambda _left_s: None)["b"], claimed(), endpoint) == sold


def test_a_body_asks_for_flex_and_is_the_same_otherwise() -> None:
    body = b'{"model":"auto","messages":[{"role":"user","content":"h\\u00e9"}],"seed":12345678901234567890}'
    assert msgspec.json.decode(in_flex(body)) == {**msgspec.json.decode(body), "service_tier": "flex"}


@pytest.mark.parametrize("named", [b'"default"', b'"auto"', b"null"])
def test_a_body_that_names_a_service_tier_keeps_it(named: bytes) -> None:
    body = b'{"model":"auto","service_tier":' + named + b"}"
    assert in_flex(body) == body


_WAYS = st.lists(
    st.builds(
        Way,
        name=st.sampled_from(["own", "flex", "provider", "calls"]),
        cost_nanousd=st.none() | st.integers(0, 5),
        takes_s=st.floats(0, 10),
    ),
    min_size=1,
    max_size=6,
)


@given(ways=_WAYS, left_s=st.none() | st.floats(-1, 12))
def test_no_way_in_time_is_cheaper_than_the_one_chosen(ways: list[Way], left_s: float | None) -> None:
    """And where none is in time, none is quicker."""
    chosen = cheapest_way(ways, left_s)
    in_time = [way for way in ways if left_s is None or way.takes_s <= left_s]
    if in_time:
        assert chosen in in_time
        known = [way.cost_nanousd for way in in_time if way.cost_nanousd is not None]
        assert chosen.cost_nanousd == min(known, default=None)
    else:
        assert chosen.takes_s == min(way.takes_s for way in ways)


@given(ways=_WAYS, left_s=st.floats(-1, 12), less_s=st.floats(0, 5))
def test_less_time_never_leads_to_a_slower_way(ways: list[Way], left_s: float, less_s: float) -> None:
    assert cheapest_way(ways, left_s - less_s).takes_s <= cheapest_way(ways, left_s).takes_s


@given(
    left_s=st.none() | st.floats(1, 86_400),
    needed=st.none() | st.floats(0, 86_400),
    share=st.floats(0, 1),
    turnaround=st.floats(0, 86_400),
)
def test_what_is_handed_over_can_still_be_taken_back(
    left_s: float | None, needed: float | None, share: float, turnaround: float
) -> None:
    """A provider's batch is in time only where what it has could be answered by other ways after it has failed."""
    handed_s = (needed or 0.0) * share
    found = times(left_s, needed, handed_s, turnaround)
    if left_s is not None and found.provider_s <= left_s:
        after_s = left_s - turnaround
        assert after_s >= found.turn_back_s - 1e-6
        assert after_s >= handed_s / EASY - 1e-6
        assert needed is not None or after_s >= left_s * EASY - 1e-6
