"""What the benchmark asks of each wire, and what it tells of them."""

import pytest

from benchmarks.driver import Result
from benchmarks.run import Pooled, _wires_report, wire_bodies
from proxy.hot_routes import WIRES
from proxy.request import RequestHeaders, input_tokens, prompt_of


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

    def pool(cpu_s: float, latency_us: int) -> Pooled:
        pooled = Pooled()
        pooled.cpu_s = cpu_s
        told = {"errors": 0, "error_kinds": {}, "seconds": 1.0, "events": 0, "peak_streams": 0, "ttfts_us": []}
        pooled.add(Result(sent=100, requests=100, latencies_us=[latency_us], **told))  # type: ignore[arg-type]
        return pooled

    report = _wires_report({"chat": (pool(0.1, 500), pool(0.1, 500)), "messages": (pool(0.11, 600), pool(0.1, 600))})
    assert report["messages"]["cpu_us_a_request"] == pytest.approx(1_100)
    assert report["messages"]["cpu_us_a_request_of_chat"] == pytest.approx(1.1)
    assert report["messages"]["single_p50_ms_of_chat"] == pytest.approx(1.2)
