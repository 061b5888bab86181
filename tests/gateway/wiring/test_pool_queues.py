"""Queues that are as large as the pools behind them."""

from collections.abc import Sequence

from gateway.wiring.pool_queues import sized
from proxy.queues.queues_config import QueueConfig

_OWN = QueueConfig(targets=("llama",))
_SET = QueueConfig(targets=("mistral",), tokens_in_flight=500)


class _Holds:
    """A fleet that carries so many tokens."""

    def __init__(self, tokens: int) -> None:
        self.count = tokens

    def tokens(self, targets: Sequence[str]) -> int:
        assert tuple(targets) == ("llama",)
        return self.count


def test_only_queues_without_a_size_get_the_pools() -> None:
    """What an operator wrote stays."""
    found = sized({"own": _OWN, "set": _SET}, {}, _Holds(9_000))
    assert (found["own"].tokens_in_flight, found["set"].tokens_in_flight) == (9_000, 500)


def test_small_changes_are_not_followed() -> None:
    """A new division of the capacity for each scrape would be work for nothing; a replica more or less is followed."""
    now = sized({"own": _OWN}, {}, _Holds(10_000))
    assert sized({"own": _OWN}, now, _Holds(10_150)) == now
    assert sized({"own": _OWN}, now, _Holds(9_850)) == now
    assert sized({"own": _OWN}, now, _Holds(20_000))["own"].tokens_in_flight == 20_000
    assert sized({"own": _OWN}, now, _Holds(5_000))["own"].tokens_in_flight == 5_000


def test_a_pool_with_nobody_leaves_room_for_one() -> None:
    """The request that finds it empty is told so by dispatch, not by a wait without end."""
    assert sized({"own": _OWN}, {}, _Holds(0))["own"].tokens_in_flight == 1
