"""The scripted twin does what its script says, in this process."""

import pytest

from providers.errors import (
    MalformedReply,
    StreamCut,
    UpstreamError,
    UpstreamRateLimited,
    UpstreamTimeout,
    UpstreamUnavailable,
)
from testing.scripted.upstream import Script, ScriptedUpstream, ScriptUnknown, script_named
from tests.providers.calls import chat_request, deployment, read_all, talk, text_of, upstream_call


def scripted(model: str) -> ScriptedUpstream:
    return ScriptedUpstream(script_named(model))


async def test_a_stream_and_what_was_seen() -> None:
    """Tokens, a finish, usage; the call and its true usage are remembered."""
    upstream = ScriptedUpstream()
    events = await talk(upstream, upstream_call(deployment("scripted", upstream_model="tokens-4")))
    assert text_of(events) == " w0 w1 w2 w3"
    assert [event.token for event in events] == [False, *[True] * 4, False, False]
    assert events[-1].usage is not None
    (seen,) = upstream.seen
    assert (seen.request_id, seen.completion_tokens, seen.ended) == ("req-1", 4, True)
    assert upstream.open_streams == 0


async def test_hanging_up_is_seen() -> None:
    """A stream closed early counts only what was played."""
    upstream = scripted("tokens-9")
    stream = await upstream.open(upstream_call(deployment("scripted")))
    for _ in range(3):
        await stream.read()
    assert upstream.open_streams == 1
    await stream.aclose()
    await stream.aclose()
    (seen,) = upstream.seen
    assert (seen.completion_tokens, seen.ended, upstream.open_streams) == (2, False, 0)


@pytest.mark.parametrize(
    ("model", "kind"),
    [
        ("error-500", UpstreamUnavailable),
        ("error-429+retry-after-1500ms", UpstreamRateLimited),
        ("cut-2", StreamCut),
        ("malformed-1", MalformedReply),
        ("error-at-2", UpstreamUnavailable),
    ],
)
async def test_faults(model: str, kind: type[UpstreamError]) -> None:
    """Each fault is the error that the real upstream would make of it."""
    with pytest.raises(kind) as raised:
        await talk(scripted(model), upstream_call(deployment("scripted")))
    if kind is UpstreamRateLimited:
        assert raised.value.retry_after_s == 1.5


@pytest.mark.parametrize("model", ["hang", "hang-2"])
async def test_silence_meets_the_deadlines(model: str) -> None:
    """A script that hangs runs into the call's own timers."""
    hurried = upstream_call(deployment("scripted"), total_timeout_s=0.05, idle_timeout_s=0.05)
    with pytest.raises(UpstreamTimeout):
        await talk(scripted(model), hurried)


async def test_time_is_injected() -> None:
    """Delays go to the given sleep."""
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    upstream = ScriptedUpstream(Script(first_token_after_s=5, every_s=1, tokens=3), sleep)
    await read_all(await upstream.open(upstream_call(deployment("scripted"))))
    assert slept == [5, 1, 1]


@pytest.mark.parametrize(("model", "usage"), [("no-usage", None), ("absurd-usage", 10**18), ("negative-usage", -5)])
async def test_odd_usage(model: str, usage: int | None) -> None:
    """Usage can be missing, absurd or negative, streaming or not."""
    for stream in (True, False):
        events = await talk(scripted(model), upstream_call(deployment("scripted"), chat_request(stream=stream)))
        found = events[-1].usage
        assert (found["prompt_tokens"] if found is not None else None) == usage


async def test_a_script_for_each_call() -> None:
    """A function may choose the script by the call."""
    upstream = ScriptedUpstream(lambda each: Script(tokens=len(each.request_id)))
    assert text_of(await talk(upstream, upstream_call(deployment("scripted"), request_id="ab"))) == " w0 w1"


def test_unknown_scripts_are_told() -> None:
    """A misspelt script name is refused with the known ones."""
    for name in ("okay", "cut-x", "slow-first-token-5", "", "tokens-1ms"):
        with pytest.raises(ScriptUnknown, match="slow-first-token-Nms"):
            script_named(name)
