"""Every dialect of usage becomes the same inclusive buckets, and nonsense never does."""

from collections.abc import Callable
from typing import Any, TypedDict

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost.meters import METER_NAMES
from cost.prices import meters
from cost.usage import Usage, estimated, from_openai, plain_usage
from providers.wire import WireUsage

GUESS = estimated(input_tokens=90, output_tokens=40)


class Limits(TypedDict):
    """What the tests' target could at most have used."""

    max_input_tokens: int
    max_output_tokens: int


LIMITS = Limits(max_input_tokens=100_000, max_output_tokens=20_000)

counts = st.integers(0, 10_000)
junk = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**30), 10**30) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
NAMES = [
    "prompt_tokens",
    "completion_tokens",
    "total_tokens",
    "prompt_tokens_details",
    "completion_tokens_details",
    "cached_tokens",
    "cache_write_tokens",
    "reasoning_tokens",
    "audio_tokens",
    "image_tokens",
    "video_tokens",
    "cached_tokens_details",
    "cache_read_input_tokens",
    "cache_creation_input_tokens",
    "cache_creation",
    "cache_creation_tokens",
    "cache_creation_token_details",
    "ephemeral_5m_input_tokens",
    "ephemeral_1h_input_tokens",
]
untrusted = st.dictionaries(
    st.sampled_from(NAMES),
    counts | junk | st.dictionaries(st.sampled_from(NAMES), counts | junk, max_size=4),
    max_size=len(NAMES),
)


small = st.integers(-1, 40)
details = st.none() | st.dictionaries(
    st.sampled_from(
        [
            *("cached_tokens", "reasoning_tokens", "audio_tokens", "image_tokens", "video_tokens"),
            *("cache_write_tokens", "cache_creation_tokens"),
        ]
    ),
    small | st.none() | st.booleans(),
    max_size=3,
)


@st.composite
def nearly_plain(draw: st.DrawFn) -> WireUsage:
    """Reports as most hosts send them, and those that differ from them in one thing or two."""
    prompt, completion = draw(small), draw(small)
    return WireUsage(
        prompt_tokens=draw(st.just(prompt) | junk),
        completion_tokens=draw(st.just(completion) | junk),
        total_tokens=draw(st.just(prompt + completion) | small | st.none()),
        prompt_tokens_details=draw(details),
        completion_tokens_details=draw(details),
        cache_creation_input_tokens=draw(st.none() | small),
        cache_read_input_tokens=draw(st.none() | small),
        cache_creation=draw(st.none() | details),
        server_tool_use=draw(st.none() | details),
    )


@given(nearly_plain(), st.integers(0, 50), st.integers(0, 50))
def test_a_plain_report_is_read_as_any_other(raw: WireUsage, most_input: int, most_output: int) -> None:
    """The quick look finds what the closer one finds, or nothing."""
    limits = Limits(max_input_tokens=most_input, max_output_tokens=most_output)
    quick = plain_usage(raw, **limits)
    assert quick in (None, from_openai(raw, estimate=GUESS, **limits))


def test_most_reports_are_plain() -> None:
    """OpenAI's and vLLM's own are."""
    plain = WireUsage(prompt_tokens=812, completion_tokens=76, total_tokens=888)
    assert plain_usage(plain, **LIMITS) == Usage(input_tokens=812, output_tokens=76, source="upstream")
    detailed = WireUsage(
        plain,
        prompt_tokens_details={"cached_tokens": 512, "audio_tokens": 0},
        completion_tokens_details={"reasoning_tokens": 7, "audio_tokens": 0, "accepted_prediction_tokens": 0},
    )
    told = plain_usage(detailed, **LIMITS)
    assert told is not None
    assert (told.cached_input_tokens, told.reasoning_tokens) == (512, 7)


def _openai(raw: Any) -> Usage:
    return from_openai(raw, estimate=GUESS, **LIMITS)


def _sound(usage: Usage) -> bool:
    return (
        usage.cached_input_tokens >= 0
        and 0 <= usage.cache_write_1h_tokens <= usage.cache_write_tokens
        and usage.cached_input_tokens + usage.cache_write_tokens <= usage.input_tokens <= LIMITS["max_input_tokens"]
        and 0 <= usage.reasoning_tokens <= usage.output_tokens <= LIMITS["max_output_tokens"]
        and min(meters(usage)) >= 0
    )


@given(raw=untrusted | junk)
def test_whatever_comes_the_buckets_are_sound(raw: Any) -> None:
    """Parts never exceed their whole, nothing is negative or beyond the limits, and nothing raises."""
    usage = _openai(raw)
    assert _sound(usage)
    assert all(type(count) is int for count in (usage.input_tokens, usage.output_tokens))
    if usage.source != "upstream":
        assert usage.source == "estimated"
        assert set(usage.flags) & {"absurd_usage", "usage_missing", "usage_partial"}


@given(counts, counts, counts, counts, counts)
def test_openai_counts_the_cached_in_the_prompt(
    fresh: int, cached: int, written: int, answer: int, thought: int
) -> None:
    """What OpenAI reports is taken over: its prompt contains the cached, its completion the reasoning."""
    prompt, completion = fresh + cached + written, answer + thought
    usage = _openai(
        {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": cached, "cache_write_tokens": written, "audio_tokens": 0},
            "completion_tokens_details": {"reasoning_tokens": thought},
        }
    )
    assert usage == Usage(
        input_tokens=prompt,
        cached_input_tokens=cached,
        cache_write_tokens=written,
        output_tokens=completion,
        reasoning_tokens=thought,
        source="upstream",
    )


@given(counts, counts, counts, counts)
def test_litellm_names_the_cache_outside_but_counts_it_inside(
    fresh: int, cached: int, written: int, answer: int
) -> None:
    """With litellm's extra fields the prompt still contains what was cached, once."""
    usage = _openai(
        {
            "prompt_tokens": fresh + cached + written,
            "completion_tokens": answer,
            "cache_read_input_tokens": cached,
            "cache_creation_input_tokens": written,
            "prompt_tokens_details": {"cached_tokens": cached},
        }
    )
    assert (usage.input_tokens, usage.cached_input_tokens, usage.cache_write_tokens) == (
        fresh + cached + written,
        cached,
        written,
    )


@given(fresh=counts, five=counts, hour=counts, untold=counts, beside=st.booleans())
def test_the_hours_cache_is_a_part_of_what_was_written(
    fresh: int, five: int, hour: int, untold: int, *, beside: bool
) -> None:
    """Some tell it beside the sum, as Anthropic does, and some within the prompt's details; what is told of neither is five minutes'."""
    written = five + hour + untold
    kept = {"ephemeral_5m_input_tokens": five, "ephemeral_1h_input_tokens": hour}
    prompt = {"prompt_tokens": fresh + written, "completion_tokens": 1}
    if beside:
        usage = _openai({**prompt, "cache_creation_input_tokens": written, "cache_creation": kept})
    else:
        details = {"cached_tokens": 0, "cache_creation_tokens": written, "cache_creation_token_details": kept}
        usage = _openai({**prompt, "prompt_tokens_details": details})
    assert usage == Usage(
        input_tokens=fresh + written,
        cache_write_tokens=written,
        cache_write_1h_tokens=hour,
        output_tokens=1,
        source="upstream",
    )


def test_details_without_a_sum_are_the_sum() -> None:
    """And details that are more than the sum are believed before it."""
    kept = {"ephemeral_5m_input_tokens": 5, "ephemeral_1h_input_tokens": 7}
    raw = {"prompt_tokens": 20, "completion_tokens": 1, "cache_creation": kept}
    told = _openai(raw)
    assert (told.input_tokens, told.cache_write_tokens, told.cache_write_1h_tokens) == (20, 12, 7)
    assert _openai({**raw, "cache_creation_input_tokens": 11}).cache_write_tokens == 12


_WHOLE: dict[str, Any] = {
    "prompt_tokens": 50,
    "completion_tokens": 20,
    "prompt_tokens_details": {"cached_tokens": 10, "cache_write_tokens": 5},
    "completion_tokens_details": {"reasoning_tokens": 3},
    "cache_creation": {"ephemeral_5m_input_tokens": 2, "ephemeral_1h_input_tokens": 3},
}
unreadable = (
    st.integers(max_value=-1)
    | st.integers(min_value=10**9 + 1)
    | st.floats(allow_nan=True).filter(lambda figure: not (figure.is_integer() and 0 <= figure <= 10**9))
    | st.booleans()
    | st.text("abc -x", max_size=3)
    | st.lists(counts, max_size=2)
)


def _places(report: dict[str, Any]) -> list[tuple[str, ...]]:
    """The way to each figure of a report."""
    return [
        (name, *inner)
        for name, value in report.items()
        for inner in (_places(value) if isinstance(value, dict) else [()])
    ]


@given(data=st.data())
def test_no_figure_is_trusted_when_one_cannot_be_read(data: st.DataObject) -> None:
    """Negative, huge, no number, no whole one: the report is replaced by our estimate, and flagged."""
    report = msgspec.to_builtins(_WHOLE)
    assert _openai(report).source == "upstream"
    *way, last = data.draw(st.sampled_from(_places(report)))
    part = report
    for name in way:
        part = part[name]
    part[last] = data.draw(unreadable)
    assert _openai(report) == Usage(input_tokens=90, output_tokens=40, source="estimated", flags=("absurd_usage",))


def test_a_part_that_is_more_than_its_whole_is_counted_beside_it() -> None:
    """A host that leaves the cached out of the prompt, reasoning out of the answer, or sound out of either, bills both."""
    cached = _openai({"prompt_tokens": 5, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 6}})
    assert (cached.input_tokens, cached.cached_input_tokens, cached.flags) == (11, 6, ("cache_added",))
    thought = _openai(
        {"prompt_tokens": 5, "completion_tokens": 1, "completion_tokens_details": {"reasoning_tokens": 2}}
    )
    assert (thought.output_tokens, thought.reasoning_tokens, thought.flags) == (3, 2, ("reasoning_added",))
    heard = _openai({"prompt_tokens": 5, "completion_tokens": 1, "prompt_tokens_details": {"audio_tokens": 6}})
    assert (heard.input_tokens, heard.audio_input_tokens, heard.flags) == (11, 6, ("media_added",))
    drawn = _openai({"prompt_tokens": 5, "completion_tokens": 1, "completion_tokens_details": {"image_tokens": 2}})
    assert (drawn.output_tokens, drawn.image_output_tokens, drawn.flags) == (3, 2, ("media_added",))


def test_a_zero_is_believed_unless_there_was_text() -> None:
    """A host that counts nothing of what it wrote is estimated; who wrote nothing is believed."""
    zeros = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
    told = from_openai(zeros, estimate=GUESS, zeros_are_told=False, **LIMITS)
    assert told == Usage(input_tokens=90, output_tokens=40, source="estimated", flags=("usage_zero",))
    half = from_openai({"prompt_tokens": 12, "completion_tokens": 0}, estimate=GUESS, zeros_are_told=False, **LIMITS)
    assert (half.input_tokens, half.output_tokens, half.flags) == (12, 40, ("usage_zero",))
    silent = estimated(input_tokens=90, output_tokens=0)
    empty = from_openai({"prompt_tokens": 12, "completion_tokens": 0}, estimate=silent, zeros_are_told=False, **LIMITS)
    assert empty == Usage(input_tokens=12, source="upstream")


@pytest.mark.parametrize("as_host", [str, float, lambda count: f"{count}.0"])
def test_counts_are_read_however_they_are_written(as_host: Callable[[int], object]) -> None:
    """Some hosts write them as strings, some as floats."""
    usage = _openai({name: as_host(count) for name, count in _COUNTS.items()})
    assert usage == Usage(input_tokens=50, output_tokens=20, source="upstream")


_COUNTS = {"prompt_tokens": 50, "completion_tokens": 20, "total_tokens": 70}


@given(counts, counts, counts, counts, st.integers(0, 12_000), st.integers(0, 12_000))
def test_what_is_more_than_possible_is_disputed_and_nothing_is_lost(
    fresh: int, cached: int, answer: int, thought: int, most_input: int, most_output: int
) -> None:
    """What is booked is possible, and with what is disputed it is what was told."""
    raw = {
        "prompt_tokens": fresh + cached,
        "completion_tokens": answer + thought,
        "prompt_tokens_details": {"cached_tokens": cached},
        "completion_tokens_details": {"reasoning_tokens": thought},
    }
    usage = from_openai(raw, estimate=GUESS, max_input_tokens=most_input, max_output_tokens=most_output)
    assert (usage.input_tokens, usage.output_tokens) == (
        min(fresh + cached, most_input),
        min(answer + thought, most_output),
    )
    assert usage.input_tokens + usage.disputed_input == fresh + cached
    assert usage.output_tokens + usage.disputed_output == answer + thought
    assert usage.cached_input_tokens <= usage.input_tokens
    assert usage.reasoning_tokens <= usage.output_tokens
    assert usage.is_disputed == ("usage_disputed" in usage.flags)
    assert usage.source == "upstream"


def test_what_is_booked_of_a_disputed_report_is_the_dearest() -> None:
    """Of more than is possible, sound is kept before text, so that no dispute makes a call cheaper than it was."""
    raw = {
        "prompt_tokens": 1_000,
        "completion_tokens": 1_000,
        "prompt_tokens_details": {"audio_tokens": 300, "cached_tokens": 600},
        "completion_tokens_details": {"audio_tokens": 700, "reasoning_tokens": 200},
    }
    usage = from_openai(raw, estimate=GUESS, max_input_tokens=400, max_output_tokens=800)
    assert _media(usage) == {"audio_input": 300, "cached_input": 100, "audio_output": 700, "reasoning": 100}
    assert (usage.disputed_input, usage.disputed_output) == (600, 200)


def _media(usage: Usage) -> dict[str, int]:
    found = dict(zip(METER_NAMES, meters(usage), strict=True))
    return {name: count for name, count in found.items() if count and name != "request"}


@pytest.mark.parametrize(
    ("details", "told", "by_meter"),
    [
        # OpenAI's chat: nobody says which of the cached were sound, so it was the text.
        (
            {"audio_tokens": 700, "cached_tokens": 256},
            {"audio_tokens": 400, "reasoning_tokens": 0},
            {"input": 44, "audio_input": 700, "cached_input": 256, "output": 100, "audio_output": 400},
        ),
        # There is not as much text as was cached: the rest was pictures, then sound.
        (
            {"audio_tokens": 700, "image_tokens": 200, "cached_tokens": 512},
            {},
            {
                "audio_input": 488,
                "cached_input": 100,
                "cached_image_input": 200,
                "cached_audio_input": 212,
                "output": 500,
            },
        ),
        # The realtime shape: the cached are told by kind, and their sound is within `audio_tokens`, too.
        (
            {
                "text_tokens": 300,
                "audio_tokens": 700,
                "cached_tokens": 640,
                "cached_tokens_details": {"text_tokens": 64, "audio_tokens": 576},
            },
            {"text_tokens": 100, "audio_tokens": 400},
            {
                "input": 236,
                "audio_input": 124,
                "cached_input": 64,
                "cached_audio_input": 576,
                "output": 100,
                "audio_output": 400,
            },
        ),
        # Gemini's, as litellm tells it: `audio_tokens` are without the cached, and text is what is left.
        (
            {"text_tokens": 100, "audio_tokens": 300, "image_tokens": None, "cached_tokens": 600},
            {"text_tokens": 20, "image_tokens": 400, "reasoning_tokens": 80},
            {
                "input": 100,
                "audio_input": 300,
                "cached_input": 600,
                "output": 20,
                "image_output": 400,
                "reasoning": 80,
            },
        ),
        # xAI tells text too, and an answer that is a video.
        (
            {"text_tokens": 900, "audio_tokens": 0, "image_tokens": 100, "cached_tokens": 0},
            {"video_tokens": 500},
            {"input": 900, "image_input": 100, "video_output": 500},
        ),
        # More is told cached of a kind than there is of it.
        (
            {
                "audio_tokens": 50,
                "cached_tokens": 100,
                "cached_tokens_details": {"audio_tokens": 80, "image_tokens": 9},
            },
            None,
            {"input": 900, "cached_input": 50, "cached_audio_input": 50, "output": 500},
        ),
    ],
)
def test_sound_pictures_and_video_are_told_apart(
    details: dict[str, Any], told: dict[str, Any] | None, by_meter: dict[str, int]
) -> None:
    """Each kind that a provider names has its meter, and what came from the cache is in that of the cache alone."""
    report = {"prompt_tokens": 1_000, "completion_tokens": 500, "total_tokens": 1_500}
    usage = _openai(report | {"prompt_tokens_details": details, "completion_tokens_details": told})
    assert (usage.source, usage.flags) == ("upstream", ())
    assert _media(usage) == by_meter


@given(counts, counts, counts, counts, counts, st.booleans())
def test_what_is_counted_as_sound_and_as_cached_is_counted_once(
    text: int, audio: int, image: int, kept_text: int, kept: int, apart: bool
) -> None:
    """All of the prompt is in its meters, and as much of it is cached as was told, by kind where that is told."""
    kept_audio = min(audio, kept)
    cached = min(text, kept_text) + kept_audio
    details: dict[str, Any] = {"audio_tokens": audio, "image_tokens": image, "cached_tokens": cached}
    if apart:
        details["cached_tokens_details"] = {"audio_tokens": kept_audio, "text_tokens": cached - kept_audio}
    usage = _openai({"prompt_tokens": text + audio + image, "completion_tokens": 1, "prompt_tokens_details": details})
    found = dict(zip(METER_NAMES, meters(usage), strict=True))
    assert usage.source == "upstream"
    assert min(found.values()) >= 0
    assert usage.cached_input_tokens == cached
    of_audio = usage.audio_input_tokens + usage.cached_audio_input_tokens
    assert (of_audio, usage.image_input_tokens + usage.cached_image_input_tokens) == (audio, image)
    if apart:
        assert (usage.cached_audio_input_tokens, usage.cached_image_input_tokens) == (kept_audio, 0)


def test_a_zero_is_not_missing() -> None:
    """An explicit zero is believed; a missing figure is estimated and flagged."""
    zero = _openai({"prompt_tokens": 12, "completion_tokens": 0})
    assert zero == Usage(input_tokens=12, output_tokens=0, source="upstream")
    missing = _openai({"prompt_tokens": 12})
    assert (missing.input_tokens, missing.output_tokens, missing.source) == (12, 40, "estimated")
    assert missing.flags == ("usage_partial",)
    for nothing in (None, {}, {"prompt_tokens": None, "completion_tokens": None}):
        usage = _openai(nothing)
        assert (usage.input_tokens, usage.output_tokens, usage.flags) == (90, 40, ("usage_missing",))


def test_an_embedding_has_no_completion() -> None:
    """Where only the prompt and the total are told, the difference is the completion."""
    assert _openai({"prompt_tokens": 12, "total_tokens": 12}) == Usage(input_tokens=12, source="upstream")


def test_reasoning_left_out_of_the_completion_is_added() -> None:
    """Some hosts count reasoning in the total only; it was generated and it is charged."""
    usage = _openai(
        {
            "prompt_tokens": 10,
            "completion_tokens": 4,
            "total_tokens": 44,
            "completion_tokens_details": {"reasoning_tokens": 30},
        }
    )
    assert (usage.output_tokens, usage.reasoning_tokens, usage.flags) == (34, 30, ("reasoning_added",))


@pytest.mark.parametrize(
    ("details", "total", "written"),
    [({}, 44, 34), ({}, 14, 4), ({}, 12, 4), ({"cached_tokens": 8}, 22, 4), ({"cached_tokens": 8}, 44, 34)],
    ids=["beside", "nothing", "less", "the cached ones", "more than the cached ones"],
)
def test_what_the_total_alone_tells_was_thought(details: dict[str, int], total: int, written: int) -> None:
    """Gemini bills it as output. But a host that adds the cached ones to its total once more bills no more."""
    usage = _openai(
        {"prompt_tokens": 10, "completion_tokens": 4, "total_tokens": total, "prompt_tokens_details": details}
    )
    assert usage.output_tokens == written
    assert usage.flags == (("thought_added",) if written > 4 else ())


@pytest.mark.parametrize(
    "nonsense", [-1, True, 1.5, "12 tokens", "", [], 10**9 + 1, 10**30, float("nan"), float("inf")]
)
@pytest.mark.parametrize("field", ["prompt_tokens", "completion_tokens", "total_tokens"])
def test_one_unreadable_figure_makes_the_report_unreadable(field: str, nonsense: Any) -> None:
    """A figure that cannot be is never trusted, and neither are its neighbours."""
    usage = _openai({"prompt_tokens": 5, "completion_tokens": 5, field: nonsense})
    assert (usage.input_tokens, usage.output_tokens, usage.source) == (90, 40, "estimated")
    assert usage.flags == ("absurd_usage",)


def test_flags_are_kept_and_not_repeated() -> None:
    """What was odd before stays told."""
    guess = estimated(input_tokens=1, output_tokens=1, flags=("stream_cut",))
    usage = from_openai(None, estimate=guess, flags=("stream_cut",), **LIMITS)
    assert usage.flags == ("stream_cut", "usage_missing")
    told = from_openai({"prompt_tokens": 1, "completion_tokens": 1}, estimate=guess, flags=("caller_gone",), **LIMITS)
    assert (told.source, told.flags) == ("upstream", ("caller_gone",))


def _report(prompt: int | None, completion: int | None, total: int | None = None, **details: Any) -> dict[str, Any]:
    """A report whose details are told by their place."""
    named = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": total}
    return {name: told for name, told in named.items() if told is not None} | details


@pytest.mark.parametrize(
    ("raw", "told"),
    [
        (_report(10, 5, prompt_tokens_details={"cached_tokens": 6, "cache_write_tokens": 4}), (10, 5)),
        (_report(10, 5, prompt_tokens_details={"cached_tokens": 6, "audio_tokens": 4}), (10, 5)),
        (_report(10, 5, completion_tokens_details={"reasoning_tokens": 5}), (10, 5)),
        (_report(10, 5, completion_tokens_details={"reasoning_tokens": 3, "audio_tokens": 2}), (10, 5)),
        (_report(10, 5, 15, completion_tokens_details={"reasoning_tokens": 5}), (10, 5)),
        (_report(100_000, 20_000), (100_000, 20_000)),
    ],
)
def test_a_part_may_be_its_whole(raw: Any, told: tuple[int, int]) -> None:
    """And the most is possible: nothing is odd about either."""
    usage = _openai(raw)
    assert (usage.input_tokens, usage.output_tokens, usage.source, usage.flags) == (*told, "upstream", ())


@pytest.mark.parametrize(
    ("raw", "told"),
    [
        (_report(10, 5, 21, completion_tokens_details={"reasoning_tokens": 6}), (10, 11, ("reasoning_added",))),
        (_report(10, 5, 18, completion_tokens_details={"reasoning_tokens": 3}), (10, 8, ("reasoning_added",))),
        (_report(10, 5, 16), (10, 6, ("thought_added",))),
        (
            _report(None, 5, 8, completion_tokens_details={"reasoning_tokens": 3}),
            (90, 8, ("reasoning_added", "usage_partial")),
        ),
        (_report(10, 4, 19, prompt_tokens_details={"cached_tokens": 3, "cache_write_tokens": 2}), (10, 4, ())),
        (
            _report(10, 10, completion_tokens_details={"reasoning_tokens": 5, "audio_tokens": 6}),
            (10, 16, ("media_added",)),
        ),
        (_report(None, None, 7), (90, 7, ("thought_added", "usage_partial"))),
        (_report(5, 1, prompt_tokens_details={"cached_tokens": 3, "cache_write_tokens": 3}), (11, 1, ("cache_added",))),
        (
            _report(10, 1, prompt_tokens_details={"cached_tokens": 1, "cache_write_tokens": 6, "audio_tokens": 8}),
            (17, 1, ("media_added",)),
        ),
        (
            _report(10, 1, prompt_tokens_details={"cached_tokens": 1, "cache_write_tokens": 4, "audio_tokens": 7}),
            (16, 1, ("media_added",)),
        ),
        (_report(100_001, 20_000), (100_000, 20_000, ("usage_disputed",))),
        (_report(100_000, 20_001), (100_000, 20_000, ("usage_disputed",))),
        (_report(10, None, 9), (90, 40, ("absurd_usage",))),
        (_report(10**9, 1, prompt_tokens_details={"cached_tokens": 1}), (100_000, 1, ("usage_disputed",))),
        (
            _report(10**9, 10**9, completion_tokens_details={"reasoning_tokens": 10**9}),
            (100_000, 20_000, ("usage_disputed",)),
        ),
        (_report(10**9 - 1, 1, prompt_tokens_details={"cached_tokens": 10**9}), (90, 40, ("absurd_usage",))),
        (_report(None, 5, prompt_tokens_details={"cached_tokens": 91}), (91, 5, ("usage_partial",))),
        (
            _report(None, 5, prompt_tokens_details={"cached_tokens": 50, "cache_write_tokens": 30, "audio_tokens": 30}),
            (110, 5, ("usage_partial",)),
        ),
        (
            _report(10, None, completion_tokens_details={"reasoning_tokens": 30, "audio_tokens": 20}),
            (10, 50, ("usage_partial",)),
        ),
    ],
)
def test_what_is_odd_by_one_token_is_told(raw: Any, told: tuple[int, int, tuple[str, ...]]) -> None:
    """Added, disputed, or estimated, each from its own bound on."""
    usage = _openai(raw)
    assert (usage.input_tokens, usage.output_tokens, usage.flags) == told


@pytest.mark.parametrize(
    ("raw", "plain"),
    [
        (_report(100_000, 20_000, 120_000), True),
        (_report(100_001, 1, 100_002), False),
        (_report(1, 20_001, 20_002), False),
        (_report(1, 1, 2, prompt_tokens_details={"cached_tokens": 1}), True),
        (_report(1, 1, 2, prompt_tokens_details={"cached_tokens": 2}), False),
        (_report(1, 1, 2, completion_tokens_details={"reasoning_tokens": 1}), True),
        (_report(1, 1, 2, completion_tokens_details={"reasoning_tokens": 2}), False),
        (_report(0, 1, 1), False),
        (_report(1, 0, 1), False),
        (_report(1, 1, 3), False),
        (_report(1, 1), False),
        (_report(1, 1, 2, prompt_tokens_details={"audio_tokens": 1}), False),
        (_report(1, 1, 2, completion_tokens_details={"image_tokens": 1}), False),
        (_report(1, 1, 2, completion_tokens_details={"video_tokens": 1}), False),
        (_report(1, 1, 2, prompt_tokens_details=None, cost=None), True),
        (_report(1, 1, 2, cost=0.1), False),
        (_report(1, 1, 2, prompt_tokens_details=[]), False),
        (_report(1, 1, 2, prompt_tokens_details={"cached_tokens": None}), False),
    ],
)
def test_what_is_plain(raw: Any, *, plain: bool) -> None:
    """Up to each bound; whatever else there may be is left to the closer look."""
    assert (plain_usage(raw, **LIMITS) is not None) == plain


def test_a_zero_is_missing_below_the_fewest_that_were_delivered() -> None:
    """As many as were delivered are believed, and a prompt of nothing where nothing was asked."""
    told = {"prompt_tokens": 0, "completion_tokens": 7}
    nothing = estimated(input_tokens=0, output_tokens=9)
    usages = [
        from_openai(told, estimate=nothing, zeros_are_told=False, least_output_tokens=least, **LIMITS)
        for least in (7, 8)
    ]
    assert [(each.input_tokens, each.output_tokens, each.flags) for each in usages] == [
        (0, 7, ()),
        (0, 9, ("usage_zero",)),
    ]


def test_one_token_is_more_than_none() -> None:
    """A zero gives way to an estimate of one."""
    one = estimated(input_tokens=1, output_tokens=1)
    usage = from_openai(_report(0, 0), estimate=one, zeros_are_told=False, **LIMITS)
    assert (usage.input_tokens, usage.output_tokens, usage.flags) == (1, 1, ("usage_zero",))
    for told, flags in ((_report(0, 5), ("usage_zero",)), (_report(5, 0), ("usage_zero",)), (_report(5, 5), ())):
        assert from_openai(told, estimate=one, zeros_are_told=False, **LIMITS).flags == flags


def test_our_own_count_is_never_negative() -> None:
    """Less than nothing is nothing."""
    usage = estimated(input_tokens=-1, output_tokens=-1)
    assert (usage.input_tokens, usage.output_tokens) == (0, 0)


def test_calls_of_tools_are_counted_by_their_names() -> None:
    """At most 32 of 64 characters, those that were called."""
    told = {f"{place:02}{'x' * 70}_requests": place for place in range(40)} | {"web_search": 5}
    calls = _openai(_report(1, 1, server_tool_use=told)).tool_calls
    assert calls == tuple((f"{place:02}{'x' * 62}", place) for place in range(1, 32))
    assert _openai(_report(1, 1, server_tool_use={})).tool_calls == ()
    assert _openai(_report(1, 1, server_tool_use={"web_search": 5, 7: 1, "code_requests": 2})).tool_calls == (
        ("code", 2),
    )


@pytest.mark.parametrize(
    ("written", "read"), [("0" * 18 + "12", 12), ("0" * 19 + "12", 90), ("12.0", 12), ("12.5", 90)]
)
def test_a_count_in_words_has_so_many_digits_at_most(written: str, read: int) -> None:
    """Twenty, with the zeros behind its point."""
    assert _openai({"prompt_tokens": written, "completion_tokens": 1}).input_tokens == read


@pytest.mark.parametrize(
    ("prompt", "details", "told"),
    [
        (10, {"cached_tokens": 4, "audio_tokens": 6}, {"audio_input": 6, "cached_input": 4}),
        (
            10,
            {"cached_tokens": 4, "cache_write_tokens": 3, "audio_tokens": 5},
            {"audio_input": 3, "cached_audio_input": 2, "cached_input": 2, "cache_write": 3},
        ),
        (
            10,
            {"cached_tokens": 3, "audio_tokens": 6, "image_tokens": 6},
            {"input": 7, "audio_input": 6, "image_input": 3, "cached_image_input": 3},
        ),
    ],
)
def test_what_was_counted_twice_was_cached_and_no_more(prompt: int, details: Any, told: dict[str, int]) -> None:
    """As far as the cached go, and to the token."""
    assert _media(_openai(_report(prompt, 0, prompt_tokens_details=details))) == told
