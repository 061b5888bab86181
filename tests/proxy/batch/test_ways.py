"""Flex only for what has time for it, and the body that asks for it."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.batch.scheduler import EASY, Standing, laxities
from proxy.batch.ways import MOST_FLEX, in_flex, takes_flex
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
    laxity = laxities([standing], speed)["b"]
    spare = left_s is None or (left_s > 0 and speed is not None and tokens / speed / left_s <= EASY)
    line = claimed(generation=generation, failures=failures)
    assert takes_flex(laxity, line, CHAT) == (spare and failures == 0 and generation <= MOST_FLEX)


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
    assert takes_flex(laxities([standing], None)["b"], claimed(), endpoint) == sold


def test_a_body_asks_for_flex_and_is_the_same_otherwise() -> None:
    body = b'{"model":"auto","messages":[{"role":"user","content":"h\\u00e9"}],"seed":12345678901234567890}'
    assert msgspec.json.decode(in_flex(body)) == {**msgspec.json.decode(body), "service_tier": "flex"}


@pytest.mark.parametrize("named", [b'"default"', b'"auto"', b"null"])
def test_a_body_that_names_a_service_tier_keeps_it(named: bytes) -> None:
    body = b'{"model":"auto","service_tier":' + named + b"}"
    assert in_flex(body) == body
