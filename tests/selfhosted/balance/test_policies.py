"""What the balancer is compared with."""

import random
from collections import Counter

import pytest

from selfhosted.balance.policies import POLICIES, policy_of
from selfhosted.config import BalanceConfig, RoomConfig
from tests.selfhosted.balance.pool import ask, pool, prompt, replica, stats

NAMES = ("a", "b", "c", "d")


@pytest.mark.parametrize("name", POLICIES)
def test_each_spreads_new_conversations_and_keeps_to_the_rules(name: str) -> None:
    """Nobody who is not ready is picked, everybody else is, and what was taken is given back."""
    chosen = policy_of(name, BalanceConfig(), RoomConfig(), random.Random(1))
    snapshot = pool(*NAMES, replica("e", "suspect", stats=stats()))
    picks: Counter[str] = Counter()
    leases = []
    for number in range(80):
        request = ask(*prompt(number), root=number)
        choice = chosen.pick(request, snapshot, (*NAMES, "e"), 0.0)
        assert choice is not None
        leases.append(chosen.take(choice, request, 0.0))
        picks[choice.replica] += 1
    for lease in leases:
        lease.end(1.0)
    assert set(picks) == set(NAMES)
    assert max(picks.values()) <= 2 * min(picks.values())
    assert [chosen.load(each).requests for each in NAMES] == [0, 0, 0, 0]
    assert chosen.pick(ask(), pool(), NAMES, 0.0) is None


def test_consistent_hashing_keeps_a_conversation_until_its_home_is_above_the_bound() -> None:
    """One conversation goes home while that has room, and along the ring, always in the same order, when it has none."""
    chosen = policy_of("consistent-hash", BalanceConfig(load_bound=1.25), RoomConfig(), random.Random(1))
    snapshot = pool(*NAMES)
    seen = []
    for _ in range(12):
        request = ask(*prompt(1), root=7)
        choice = chosen.pick(request, snapshot, NAMES, 0.0)
        assert choice is not None
        chosen.take(choice, request, 0.0)
        seen.append(choice.replica)
    walked = list(dict.fromkeys(seen))
    assert len(walked) >= 3
    assert walked == list(chosen.ring.walk(7))[: len(walked)]
    assert Counter(seen).most_common(1)[0][1] <= 1.25 * 12 / 4 + 1
