"""Where a document is wrong, the planner says why."""

import msgspec
import pytest

from planner.plans.caveats import check_kv_bytes, doubts_about
from planner.plans.models import model_named

MODEL = model_named("llama-3-70b")


@pytest.mark.parametrize("given", [2_621_440, 2_500_000, 10_240_000_000 // 4_096])
def test_two_and_a_half_megabytes_a_token_ignore_gqa(given: int) -> None:
    """One document has 2.5 MB a token and 10.24 GB at 4,096 tokens; Llama 70B keeps an eighth of that."""
    told = check_kv_bytes(MODEL, given)
    assert "ignores GQA" in told
    assert "327,680" in told
    assert "64 query heads" in told


def test_a_right_figure_is_called_right() -> None:
    """320 KB, in either meaning, and FP8's half of it."""
    assert all("is right" in check_kv_bytes(MODEL, given) for given in (327_680, 320_000, 163_840))


def test_a_figure_from_nowhere_is_told_as_such() -> None:
    """Without a guess at its origin."""
    assert "is not what follows" in check_kv_bytes(MODEL, 1_000_000)


def test_other_heads_than_published_are_doubted() -> None:
    """Llama 3 70B with 64 KV heads would keep eight times as much."""
    (told,) = doubts_about(msgspec.structs.replace(MODEL, kv_heads=64))
    assert "8 times" in told
    assert "has 8" in told


def test_a_7b_at_128_kilobytes_has_gqa() -> None:
    """Llama 2 7B keeps 512 KiB a token: the requirements' ~128 KB are right of Llama 3 8B only."""
    (told,) = doubts_about(model_named("llama-2-7b"))
    assert "512 KiB" in told
    assert "128 KiB" in told
    assert doubts_about(model_named("llama-3-8b")) == []
