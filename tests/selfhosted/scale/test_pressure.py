"""How near a pool is to its limits, by its worst signal."""

from typing import Any

import pytest

from selfhosted.config import ScaleConfig
from selfhosted.scale.pressure import pressure_of
from selfhosted.scale.signals import Signals


def pressed(**told: Any) -> Any:
    signals = Signals(**{"at_s": 0.0, "wall_s": 0.0, "ready": 2, **told})
    found = pressure_of(signals, ScaleConfig(tpot_target_s=0.05), alone_s=0.0175)
    return None if found is None else (found.ratio, found.of)


def test_slow_tokens_tell_the_load_before_anything_waits() -> None:
    """Alone 17.5 ms: the mean at the load that may be is 35, and at half of that load 23.3."""
    assert pressed(tpot_s=0.035) == (pytest.approx(1.0), "tpot")
    assert pressed(tpot_s=0.0175 / 0.75) == (pytest.approx(0.5), "tpot")
    assert pressed(tpot_s=0.01) is None


def test_the_worst_signal_counts() -> None:
    """Slow tokens, a full KV cache and a queue, each against its own limit."""
    assert pressed(tpot_s=0.035, kv_used=0.4) == (pytest.approx(1.0), "tpot")
    assert pressed(tpot_s=0.02, kv_used=1.6) == (pytest.approx(1.0), "memory")
    assert pressed(kv_used=0.4, waiting=12) == (pytest.approx(1.2), "queue")
    assert pressed(kv_used=0.4, waiting=2, waiting_at_gate=3) == (pytest.approx(0.25), "memory")


def test_a_pool_that_is_full_is_known_to_be_no_more_than_that() -> None:
    """What waits or crawls beyond a limit says nothing of the load at which that began."""
    assert pressed(waiting=900) == (1.5, "queue")
    assert pressed(tpot_s=9.0) == (1.5, "tpot")


def test_without_signals_or_replicas_there_is_no_pressure() -> None:
    """Unknown is not idle, and tokens that are too slow even alone are cured by no replica."""
    assert pressed() is None
    assert pressed(ready=0, waiting=50) is None
    signals = Signals(at_s=0, wall_s=0, ready=1, tpot_s=0.2)
    assert pressure_of(signals, ScaleConfig(tpot_target_s=0.05), alone_s=0.06) is None
