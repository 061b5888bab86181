"""The server's reading of bytes: the same as the former server's where that was right, and unshaken by any."""

import os

import msgspec

from tests.proxy.http.verdicts import Former, Generator, Ours, Seen, Verdict

_CASES = int(os.environ.get("HTTP_CASES", "5000"))
"""How many cases are compared; HTTP_CASES=20000 are those that a release is checked with."""


def _same(mine: Seen, theirs: Seen) -> bool:
    """Whether two saw the same request. The former server took the trailers behind chunks for header fields."""
    cut = msgspec.structs.replace(theirs, headers=theirs.headers[: len(mine.headers)])
    return mine == theirs or (mine == cut and mine.field(b"transfer-encoding") is not None)


def _is_rightly_refused(missed: Seen, data: bytes) -> bool:
    """Whether a request that was served is now refused for good reason: a version other than 1.0 and 1.1, no host or two,
    another coding than `chunked` alone or in HTTP/1.0, and extensions of chunks, of which fewer are understood.
    """
    coding = missed.field(b"transfer-encoding")
    hosts = [name for name, _ in missed.headers].count(b"host")
    return (
        missed.version not in {"1.0", "1.1"}
        or hosts > 1
        or (hosts == 0 and missed.version == "1.1")
        or (coding is not None and (coding.lower() != b"chunked" or missed.version == "1.0" or b";" in data))
    )


def _agree(ours: Verdict, former: Verdict, data: bytes) -> bool:
    if not all(map(_same, ours.seen, former.seen)):
        return False
    if len(ours.seen) < len(former.seen):
        return ours.refused and _is_rightly_refused(former.seen[len(ours.seen)], data)
    # The former server forgot requests that were whole when nonsense came behind them.
    return len(ours.seen) == len(former.seen) or former.refused


async def test_requests_are_read_as_before() -> None:
    """Method, target, fields and body of every request that was rightly served, in any pieces and however many at once."""
    generator = Generator(seed=1)
    ours, former = Ours(), Former()
    served = refused = 0
    for number in range(_CASES):
        pieces = generator.case()
        mine, theirs = await ours.verdict(pieces), await former.verdict(pieces)
        assert _agree(mine, theirs, b"".join(pieces)), (number, pieces, mine, theirs)
        served += bool(mine.seen)
        refused += mine.refused
    # Cases that all go one way would compare nothing.
    assert served > _CASES / 4
    assert refused > _CASES / 4


async def test_noise_shakes_nothing() -> None:
    """Random and mutated bytes: no exception, nothing left behind, and a reply only where there may be a request."""
    generator = Generator(seed=2)
    ours = Ours()
    for _ in range(3000):
        verdict = await ours.verdict(generator.noise())
        assert all(status in {200, 400, 405, 413, 415, 417, 431, 501, 505} for status in verdict.statuses)
    assert not ours.server.connections
    assert not ours.server.tasks
    assert ours.server.held.held == 0
