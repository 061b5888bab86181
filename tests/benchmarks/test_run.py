"""What the benchmark asks of each wire, what it tells of them, and what it counts."""

import pytest

from benchmarks.driver import Result
from benchmarks.processes import used_at_rest
from benchmarks.run import Pooled, _wires_report, wire_bodies
from proxy.parse.chat_request import input_tokens, prompt_of
from proxy.parse.headers import RequestHeaders
from proxy.routes import WIRES


def _pool(cpu_s: float, latency_us: int) -> Pooled:
    pooled = Pooled()
    pooled.cpu_s = cpu_s
    told = {"errors": 0, "error_kinds": {}, "seconds": 1.0, "events": 0, "peak_streams": 0, "ttfts_us": []}
    pooled.add(Result(sent=100, requests=100, latencies_us=[latency_us], **told))  # type: ignore[arg-type]
    return pooled


def test_each_wire_is_asked_the_same() -> None:
    """Its own parser takes its body, and finds the same prompt in it."""
    by_path = {wire.path: wire for wire in WIRES}
    requests = [
        by_path[path].read(body, RequestHeaders(), lambda _: True).request for path, body in wire_bodies().values()
    ]
    assert len({prompt_of(request).text for request in requests}) == 1
    assert len({input_tokens(request, prompt_of(request)) for request in requests}) == 1


def test_wires_are_told_as_multiples_of_chat() -> None:
    """Of processor time under load, and of latency at one connection."""
    report = _wires_report(
        {"chat": (_pool(0.1, 500), _pool(0.1, 500)), "messages": (_pool(0.11, 600), _pool(0.1, 600))}
    )
    assert report["messages"]["cpu_us_a_request"] == pytest.approx(1_100)
    assert report["messages"]["cpu_us_a_request_of_chat"] == pytest.approx(1.1)
    assert report["messages"]["single_p50_ms_of_chat"] == pytest.approx(1.2)


def test_work_that_is_left_for_later_makes_no_server_faster() -> None:
    """What its processes do after a load, until they only poll, is waited for and counts as time of the load."""
    looks = iter([1.0, 1.5, 1.9, 1.91, 5.0])
    assert used_at_rest(lambda: next(looks), lambda _: None) == pytest.approx(1.91)
    pooled = _pool(2.0, 500)
    assert pooled.per_second() == pytest.approx(100)
    pooled.late_s = 0.25
    assert pooled.per_second() == pytest.approx(80)


def test_a_server_that_never_rests_is_not_waited_for_for_ever() -> None:
    waits: list[float] = []
    assert used_at_rest(lambda: float(len(waits)), waits.append) == pytest.approx(len(waits))
    assert 1 < sum(waits) < 30
