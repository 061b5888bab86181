"""Queues that are as large as the pools behind them."""

from collections.abc import Callable, Sequence

from proxy.admit.queues.pool_sizes import sized
from proxy.admit.queues.queues_config import QueueConfig

_OWN = QueueConfig(targets=("llama",))
_SET = QueueConfig(targets=("mistral",), tokens_in_flight=500)


def _carried(tokens: int) -> Callable[[Sequence[str]], int]:
    """A fleet that carries so many tokens."""

    def carried(targets: Sequence[str]) -> int:
        assert tuple(targets) == ("llama",)
        return tokens

    return carried


def test_only_queues_without_a_size_get_the_pools() -> None:
    """What an operator wrote stays."""
    found = sized({"own": _OWN, "set": _SET}, {}, _carried(9_000))
    assert (found["own"].tokens_in_flight, found["set"].tokens_in_flight) == (9_000, 500)


def test_small_changes_are_not_followed() -> None:
    """A new division of the capacity for each scrape would be work for nothing; a replica more or less is followed."""
    now = sized({"own": _OWN}, {}, _carried(10_000))
    assert sized({"own": _OWN}, now, _carried(10_150)) == now
    assert sized({"own": _OWN}, now, _carried(9_850)) == now
    assert sized({"own": _OWN}, now, _carried(20_000))["own"].tokens_in_flight == 20_000
    assert sized({"own": _OWN}, now, _carried(5_000))["own"].tokens_in_flight == 5_000


def test_a_pool_with_nobody_leaves_room_for_one() -> None:
    """The request that finds it empty is told so by dispatch, not by a wait without end."""
    assert sized({"own": _OWN}, {}, _carried(0))["own"].tokens_in_flight == 1
