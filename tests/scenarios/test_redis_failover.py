"""Redis's primary dies under two gateways: no request fails, and the limits are one again with the next primary."""

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from tests.redis_topologies import Topology, cluster, sentinels
from tests.scenarios.conftest import Upstream
from tests.scenarios.neighbours import Neighbour, neighbours

OK = {"ok": "ok"}
BURST: Final = 120
# The bucket fills by one a minute: while a test runs there is only what was in it.
SLOWLY: Final[dict[str, Any]] = {"requests_per_minute": 1, "request_burst": BURST}
# A busy machine's Sentinel and cluster must not be taken for absent ones; a primary that is frozen must be noticed.
SECTION: Final = {"timeout_s": 2.0, "slow_s": 1.0, "probe_s": 0.05, "connect_timeout_s": 2.0}
_NOTICE: Final = 3
"""Requests at each gateway that find the primary dead, and may have been counted by it all the same."""


async def _each_passes(gates: tuple[Neighbour, Neighbour], count: int) -> int:
    assert await asyncio.gather(*(gate.ask() for gate in gates for _ in range(count))) == [200] * 2 * count
    return 2 * count


async def _shared(gates: tuple[Neighbour, Neighbour]) -> None:
    for gate in gates:
        await gate.becomes("shared", 2)


@pytest.mark.parametrize("made", [sentinels, cluster])
@pytest.mark.parametrize("harm", ["kill", pytest.param("freeze", marks=pytest.mark.long)])
async def test_limits_outlive_their_primary(
    tmp_path: Path, upstream: Upstream, made: Callable[[], "contextlib.AbstractContextManager[Topology]"], harm: str
) -> None:
    """What was taken before, meanwhile and after is never more than the one burst, and hardly less; also once the old primary is back."""
    with contextlib.ExitStack() as stack:
        topology = await asyncio.to_thread(stack.enter_context, made())
        limits = {"team": SLOWLY}
        async with neighbours(tmp_path, upstream, OK, redis_url=topology.url, redis=SECTION, limits=limits) as gates:
            await _shared(gates)
            taken = await _each_passes(gates, 5)
            await asyncio.to_thread(topology.has_copied)
            old, new = topology.servers
            getattr(old, harm)()
            taken += await _each_passes(gates, _NOTICE)
            for gate in gates:
                await gate.becomes("share", 2)
            taken += await _each_passes(gates, 2)
            await _shared(gates)
            assert topology.primary_besides(old) is new
            taken += await _each_passes(gates, 2)
            # It comes back as it was, or empty, and believes that it is the primary still.
            old.start() if harm == "kill" else old.thaw()
            await asyncio.to_thread(topology.is_replica, old)
            await _shared(gates)
            taken += await _each_passes(gates, 2)
            rest = sum([await gate.passed(BURST - taken + 1) for gate in gates])
        assert BURST - taken - 2 * _NOTICE <= rest <= BURST - taken
