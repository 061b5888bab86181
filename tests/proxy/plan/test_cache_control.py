"""Whether marks pay: by what a team's prompts were seen to do, and by the target's own prices."""

from typing import Any

import msgspec
import pytest

from cost.prices import Price
from proxy.plan.cache_control import Reuse, ReuseShares, pays

# As Anthropic's are to each other: writing costs a quarter more, reading a tenth.
PRICE = Price(
    version="t", input_nanousd=3_000, output_nanousd=15_000, cached_input_nanousd=300, cache_write_nanousd=3_750
)


@pytest.mark.parametrize(
    ("reuse", "price", "expected"),
    [
        (Reuse(None, "claude"), PRICE, True),
        (Reuse(0.0, "claude"), None, True),
        (Reuse(None, None), PRICE, False),
        (Reuse(None, "other"), PRICE, False),
        # Even at 750 / 2,700.
        (Reuse(0.27, None), PRICE, False),
        (Reuse(0.28, None), PRICE, True),
        (Reuse(1.0, None), None, False),
        (Reuse(1.0, None), msgspec.structs.replace(PRICE, cached_input_nanousd=3_000), False),
    ],
)
def test_marks_pay_where_reading_saves_more_than_writing_costs(reuse: Reuse, price: Any, expected: bool) -> None:
    """And always for a conversation whose beginning is there: without a mark it would not be read."""
    assert pays(reuse, "claude", price) is expected


def test_a_share_is_what_was_seen_of_the_team() -> None:
    """Nothing before enough was seen; each team's own; what is long ago counts less and less."""
    shares = ReuseShares()
    for _ in range(19):
        shares.note("a", again=True)
    assert shares.share("a") is None
    shares.note("a", again=False)
    assert shares.share("a") == 0.95
    assert shares.share("b") is None
    for _ in range(5_000):
        shares.note("a", again=False)
    share = shares.share("a")
    assert share is not None
    assert share < 0.01
