"""The second weigher: never waited for beyond its deadline, never asked by too many, left out where it buys nothing."""

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from classifier.encoder import MODEL_FILE, VOCABULARY_FILE, Encoder
from classifier.manifest import (
    Artifact,
    ArtifactError,
    ArtifactMalformed,
    ArtifactMismatch,
    ArtifactMissing,
    Second,
    write_artifact,
)
from classifier.onnx_classifier import OnnxClassifier, open_classifier
from classifier.prediction import Prompt
from classifier.second_weigher import (
    HEAD_FILE,
    LEAST_CHANGED,
    RETRY_EVERY,
    TEAMS,
    WINDOW,
    Head,
    SecondWeigher,
    read_files,
    read_head,
    read_second_weigher,
    read_text,
    second_sha256,
    write_head,
)
from classifier.training.commands import PACKAGED
from tests.classifier.made_up import GPT_4O, LLAMA

WIDTH = 3
PAIRS = 2
HEAD = Head(
    weights=np.arange(6.0).reshape(WIDTH, PAIRS),
    bias=np.array([0.5, -0.5]),
    weak=np.array([0, 0]),
    strong=np.array([1, 2]),
    usual=np.array([[0.25, 0.5], [0.0, 0.0]]),
    back=np.array([[-0.5, 0.5, 0.0], [-1.0, 0.0, 1.0]]),
    kind_of=np.array([0, 1]),
)
SHORT_S, LONG_S = 0.02, 30.0


class Twin:
    """Stands for the encoder: its vector tells the text's length, and it can be held up or broken."""

    width = WIDTH

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.go_on.set()
        self.failure: Exception | None = None
        self.texts: list[str] = []

    def vector(self, text: str) -> NDArray[np.float32]:
        self.texts.append(text)
        self.go_on.wait()
        if self.failure is not None:
            raise self.failure
        return np.array([len(text), 1.0, 0.0], np.float32)


@pytest.fixture
async def twin() -> AsyncIterator[Twin]:
    """Let go of at the end, so that no thread outlives its test."""
    found = Twin()
    yield found
    found.go_on.set()


async def idle(second: SecondWeigher) -> None:
    """Until every place of the queue was given back."""
    for _ in range(10_000):
        if not second._waiting:
            return
        await asyncio.sleep(0.001)
    raise AssertionError("a place was never given back")


async def begun(twin: Twin) -> None:
    """Until the thread reads a text."""
    for _ in range(10_000):
        if twin.texts:
            return
        await asyncio.sleep(0.001)
    raise AssertionError("nothing was read")


async def test_the_answer_is_the_heads(twin: Twin) -> None:
    """In time, the gains are those of the head over the encoder's vector."""
    second = SecondWeigher(twin, HEAD, deadline_s=LONG_S)
    found = await second.ask(Prompt(text="four"))
    assert found is not None
    assert found.tolist() == pytest.approx([4 * 0.0 + 2.0 + 0.5, 4 * 1.0 + 3.0 - 0.5])
    assert (second.late, second.broken) == (0, 0)
    await idle(second)
    second.close()


async def test_late_is_none_and_the_place_comes_back(twin: Twin) -> None:
    """Past the deadline nobody waits; the thread's place in the queue is given back when it ends, and it serves again."""
    second = SecondWeigher(twin, HEAD, deadline_s=SHORT_S, queue=1)
    twin.go_on.clear()
    assert await second.ask(Prompt(text="slow")) is None
    assert second.late == 1
    assert await second.ask(Prompt(text="no place yet")) is None
    assert second.late == 2
    assert twin.texts == ["slow"]
    twin.go_on.set()
    await idle(second)
    again = SecondWeigher(twin, HEAD, deadline_s=LONG_S, queue=1)
    assert await again.ask(Prompt(text="now")) is not None
    assert second.broken == 0
    second.close()
    again.close()


async def test_a_full_queue_is_not_waited_for(twin: Twin) -> None:
    """While the queue is full whoever comes gets none at once; those in it get theirs."""
    second = SecondWeigher(twin, HEAD, deadline_s=LONG_S, queue=3)
    twin.go_on.clear()
    waiting = [asyncio.ensure_future(second.ask(Prompt(text="x" * number))) for number in range(3)]
    await asyncio.sleep(0)
    assert await second.ask(Prompt(text="one too many")) is None
    assert (second.late, second.broken) == (1, 0)
    twin.go_on.set()
    assert all(found is not None for found in await asyncio.gather(*waiting))
    await idle(second)
    assert await second.ask(Prompt(text="room again")) is not None
    second.close()


class Clock:
    """Goes on by so much with each text that is read."""

    def __init__(self, twin: Twin, step_s: float) -> None:
        self.now = 0.0
        self.step_s = step_s
        self._twin = twin
        self._read = 0

    def __call__(self) -> float:
        self.now += self.step_s * (len(self._twin.texts) - self._read)
        self._read = len(self._twin.texts)
        return self.now


async def test_no_more_wait_than_are_usually_done_in_time(twin: Twin) -> None:
    """Where all came in, each would wait for the ones before it and be late: those who would be are told so at once."""
    second = SecondWeigher(twin, HEAD, deadline_s=LONG_S, clock=Clock(twin, 1.5 * LONG_S))
    assert await second.ask(Prompt(text="measured")) is not None
    await idle(second)
    twin.go_on.clear()
    waiting = [asyncio.ensure_future(second.ask(Prompt(text="in time"))) for _ in range(3)]
    await asyncio.sleep(0)
    assert await second.ask(Prompt(text="the fourth would be late")) is None
    twin.go_on.set()
    assert all(found is not None for found in await asyncio.gather(*waiting[:1]))
    await asyncio.gather(*waiting)
    await idle(second)
    second.close()


async def test_nothing_is_done_for_who_has_left(twin: Twin) -> None:
    """A prompt whose deadline passed while it was queued is not read at all."""
    clock = Clock(twin, 0.0)
    second = SecondWeigher(twin, HEAD, deadline_s=LONG_S, clock=clock)
    twin.go_on.clear()
    first = asyncio.ensure_future(second.ask(Prompt(text="first")))
    left = asyncio.ensure_future(second.ask(Prompt(text="left")))
    await begun(twin)
    clock.now += LONG_S + 1
    twin.go_on.set()
    assert await first is not None
    assert await left is None
    assert (twin.texts, second.late) == (["first"], 1)
    await idle(second)
    second.close()


async def test_a_machine_that_is_too_slow_is_not_waited_for_each_time(twin: Twin) -> None:
    """Where even a prompt alone takes too long it is left out, and tried again now and then."""
    clock = Clock(twin, 2 * LONG_S)
    second = SecondWeigher(twin, HEAD, deadline_s=LONG_S, clock=clock)
    for _ in range(2 * RETRY_EVERY):
        await second.ask(Prompt(text="close"))
        await idle(second)
    assert 3 <= len(twin.texts) <= 6
    clock.step_s = 0.0
    for _ in range(4 * RETRY_EVERY):
        await second.ask(Prompt(text="close"))
        await idle(second)
    assert len(twin.texts) > RETRY_EVERY
    second.close()


async def test_a_broken_encoder_is_counted(twin: Twin) -> None:
    """Whatever the encoder raises, the first's answer stands; the place is given back."""
    second = SecondWeigher(twin, HEAD, deadline_s=LONG_S, queue=1)
    twin.failure = RuntimeError("no more memory")
    for _ in range(2):
        assert await second.ask(Prompt(text="hi")) is None
        await idle(second)
    assert (second.late, second.broken) == (0, 2)
    second.close()


async def test_a_failure_after_the_deadline_troubles_nobody(twin: Twin) -> None:
    """What breaks when nobody waits any more is late, and no error is left unretrieved."""
    second = SecondWeigher(twin, HEAD, deadline_s=SHORT_S)
    twin.go_on.clear()
    twin.failure = RuntimeError("too late to tell")
    assert await second.ask(Prompt(text="hi")) is None
    twin.go_on.set()
    await idle(second)
    assert (second.late, second.broken) == (1, 0)
    second.close()


async def test_a_request_that_goes_away_leaves_no_place_taken(twin: Twin) -> None:
    """A caller who is cancelled while waiting is cancelled, and the place comes back."""
    second = SecondWeigher(twin, HEAD, deadline_s=LONG_S, queue=1)
    twin.go_on.clear()
    asking = asyncio.ensure_future(second.ask(Prompt(text="hi")))
    await asyncio.sleep(0)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    twin.go_on.set()
    await idle(second)
    assert await second.ask(Prompt(text="hi")) is not None
    second.close()


async def test_closing_cancels_no_request(twin: Twin) -> None:
    """Closed while prompts wait, it finishes these; asked after that, the first's answer stands."""
    second = SecondWeigher(twin, HEAD, deadline_s=LONG_S)
    twin.go_on.clear()
    waiting = [asyncio.ensure_future(second.ask(Prompt(text="hi"))) for _ in range(3)]
    await asyncio.sleep(0)
    second.close()
    assert await second.ask(Prompt(text="hi")) is None
    assert second.late == 1
    twin.go_on.set()
    assert all(found is not None for found in await asyncio.gather(*waiting))


def test_it_reads_what_the_first_reads_of_a_conversation() -> None:
    """A short follow-up is led by the end of the conversation; a long message stands alone."""
    assert read_text(Prompt(text="and then?", history="first " * 400)).endswith("first \nand then?")
    assert len(read_text(Prompt(text="and then?", history="first " * 400))) == 1010
    assert read_text(Prompt(text="long " * 100, history="first")) == "long " * 100
    assert read_text(Prompt(text="alone", system="be brief")) == "alone"


def second_of() -> SecondWeigher:
    return SecondWeigher(Twin(), HEAD)


def tell(second: SecondWeigher, team_id: str, times: int, *, changed: bool) -> None:
    for _ in range(times):
        second.answered(team_id, changed=changed)


def test_a_team_whose_decisions_never_change_is_left_out() -> None:
    """A new team is asked for; after many unchanged opinions it is no more, and other teams still are."""
    second = second_of()
    assert second.worth_asking("new")
    tell(second, "ours", WINDOW // 2, changed=False)
    assert second.worth_asking("ours")
    tell(second, "ours", WINDOW // 2, changed=False)
    assert not second.worth_asking("ours")
    assert second.worth_asking("theirs")
    second.close()


def test_a_team_whose_decisions_do_change_is_kept() -> None:
    """One opinion in ten that changed something keeps it in use for good."""
    second = second_of()
    for number in range(5 * WINDOW):
        assert second.worth_asking("ours")
        second.answered("ours", changed=number % 10 == 0)
    second.close()


def test_it_is_tried_again_now_and_then() -> None:
    """Left out, it is asked once in every RETRY_EVERY close calls."""
    second = second_of()
    tell(second, "ours", 3 * WINDOW, changed=False)
    asked = [second.worth_asking("ours") for _ in range(4 * RETRY_EVERY)]
    assert np.flatnonzero(asked).tolist() == [RETRY_EVERY * (turn + 1) - 1 for turn in range(4)]
    second.close()


def test_it_comes_back_when_it_changes_decisions() -> None:
    """A few tries that change who serves bring it back, and old silence fades."""
    second = second_of()
    tell(second, "ours", 3 * WINDOW, changed=False)
    tries = 0
    while not second.worth_asking("ours"):
        pass
    second.answered("ours", changed=True)
    while not all(second.worth_asking("ours") for _ in range(2)):
        second.answered("ours", changed=True)
        tries += 1
    assert tries <= 2 * LEAST_CHANGED * WINDOW
    second.close()


def test_teams_are_bounded() -> None:
    """Of more teams than there is room for, those that asked longest ago are forgotten, and start anew."""
    second = second_of()
    tell(second, "old", 3 * WINDOW, changed=False)
    tell(second, "older", 3 * WINDOW, changed=False)
    tell(second, "old", 1, changed=False)
    for number in range(TEAMS - 1):
        second.answered(f"team{number}", changed=False)
    assert second.worth_asking("older")
    assert not second.worth_asking("old")
    assert len(second._teams) == TEAMS
    second.close()


def test_a_head_survives_writing_and_reading() -> None:
    """The same head gives the same bytes, and they are read as it."""
    found = read_head(write_head(HEAD))
    for name in Head.__struct_fields__:
        assert getattr(found, name).tolist() == getattr(HEAD, name).tolist()
    assert write_head(found) == write_head(HEAD)


def test_only_pairs_of_the_prompts_kind_move_probabilities() -> None:
    """Abilities follow where the gains, each about its usual one, differ, and only where the pair's kind is meant."""
    adequate, gains = np.array([0.5, 0.75, 1.0]), np.array([0.75, 0.25])
    assert HEAD.shifts(adequate, 0, gains).tolist() == [-0.375, 0.375, 0.0]
    assert HEAD.shifts(adequate, 1, gains).tolist() == [0.25, 0.0, -0.25]
    assert HEAD.shifts(adequate, 2, gains).tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize(
    "change",
    [
        {"weights": np.ones(3)},
        {"weights": np.ones((3, 3))},
        {"bias": np.ones((2, 1))},
        {"bias": np.ones(())},
        {"back": np.ones((3, 3))},
        {"back": np.ones(2)},
        {"back": np.ones(())},
        {"usual": np.ones(2)},
        {"weak": np.ones(())},
        {"strong": np.ones(3)},
        {"kind_of": np.ones((2, 1))},
        {"weights": np.full((3, 2), np.nan)},
        {"bias": np.array([1.0, np.inf])},
        {"usual": np.full((2, 2), np.inf)},
    ],
)
def test_a_head_that_is_none_is_refused(change: dict[str, NDArray[np.float64]]) -> None:
    """Tables of other shapes, or with numbers that are none, are refused by name."""
    with pytest.raises(ArtifactMalformed, match="does not hold a head"):
        read_head(write_head(msgspec.structs.replace(HEAD, **change)))


@pytest.mark.parametrize("change", [{"weak": np.array([0, 3])}, {"strong": np.array([-1, 0])}])
def test_a_head_of_unknown_abilities_is_refused(change: dict[str, NDArray[np.int64]]) -> None:
    """A pair whose models have no column is noticed when it is read."""
    with pytest.raises(ArtifactMalformed, match="no column"):
        read_head(write_head(msgspec.structs.replace(HEAD, **change)))


@settings(deadline=None)
@given(st.binary(max_size=300) | st.integers(0, 500).map(lambda cut: write_head(HEAD)[:cut]))
def test_bytes_that_are_no_head_are_refused(content: bytes) -> None:
    """Anything else is refused by name as well."""
    with pytest.raises(ArtifactMalformed):
        read_head(content)


def with_second(artifact: Artifact, sha256: str) -> Artifact:
    manifest = msgspec.structs.replace(artifact.manifest, second=Second(sha256=sha256))
    return msgspec.structs.replace(artifact, manifest=manifest)


def head_for(artifact: Artifact, gain: float, share: float = 0.5, width: int = WIDTH) -> Head:
    """One pair for each kind: of every text it says the same gain of GPT-4o over Llama, and usually none."""
    kinds, names = len(artifact.manifest.kinds), list(artifact.manifest.abilities)
    weak, strong = names.index(LLAMA), names.index(GPT_4O)
    back = np.zeros((kinds, len(names)))
    back[:, weak], back[:, strong] = -share / 2, share / 2
    return Head(
        weights=np.zeros((width, kinds)),
        bias=np.full(kinds, gain),
        weak=np.full(kinds, weak),
        strong=np.full(kinds, strong),
        usual=np.zeros((kinds, 2)),
        back=back,
        kind_of=np.arange(kinds),
    )


async def test_a_second_opinion_moves_the_outlooks(made_up_artifact: Artifact, twin: Twin) -> None:
    """The second's gains take the pair's probabilities a part of the way; lengths and the vector stay."""
    second = SecondWeigher(twin, head_for(made_up_artifact, 0.9), deadline_s=LONG_S)
    classifier = OnnxClassifier(made_up_artifact, {"big": GPT_4O, "small": LLAMA}, second)
    # The text of a kind that was learned, so that the network is trusted.
    prompt = Prompt(text="Case 7 gate road truck driver morning ticket yard coffee letter garden gate truck?")
    first = classifier.classify(prompt)
    then = await classifier.reconsider(prompt, first)
    assert (first.source, then.source) == ("onnx", "encoder")
    one, other = first.outlooks["big"], then.outlooks["big"]
    small, smaller = first.outlooks["small"], then.outlooks["small"]
    step = (0.9 - (one.adequate - small.adequate)) / 4
    assert other.adequate == pytest.approx(min(one.adequate + step, 0.999))
    assert smaller.adequate == pytest.approx(max(small.adequate - step, 0.001))
    assert then.complexity > first.complexity
    assert one.output_tokens == other.output_tokens
    # What is stored is the prompt's own side, the same whoever was asked.
    assert then.vector == first.vector
    assert await classifier.reconsider(prompt, then) is then
    classifier.close()


async def test_without_a_share_it_changes_nothing(made_up_artifact: Artifact, twin: Twin) -> None:
    """Where measuring gave the second no say, its opinion is the first's."""
    second = SecondWeigher(twin, head_for(made_up_artifact, 0.9, share=0.0), deadline_s=LONG_S)
    classifier = OnnxClassifier(made_up_artifact, {"big": GPT_4O, "small": LLAMA}, second)
    first = classifier.classify(Prompt(text="hi"))
    then = await classifier.reconsider(Prompt(text="hi"), first)
    assert then.complexity == first.complexity
    classifier.close()


@pytest.mark.parametrize("failure", [None, RuntimeError("broken")])
async def test_the_first_answer_stands(made_up_artifact: Artifact, twin: Twin, failure: Exception | None) -> None:
    """Late or broken, the very same prediction comes back."""
    twin.failure = failure
    second = SecondWeigher(twin, head_for(made_up_artifact, 0.9), deadline_s=SHORT_S if failure is None else LONG_S)
    if failure is None:
        twin.go_on.clear()
    classifier = OnnxClassifier(made_up_artifact, {"big": GPT_4O, "small": LLAMA}, second)
    first = classifier.classify(Prompt(text="hi"))
    assert await classifier.reconsider(Prompt(text="hi"), first) is first
    twin.go_on.set()
    classifier.close()


async def test_gains_that_are_no_numbers_change_nothing(made_up_artifact: Artifact, twin: Twin) -> None:
    """When the second gives something that is no number, the first's answer stands and it is counted."""
    second = SecondWeigher(twin, head_for(made_up_artifact, float("nan")), deadline_s=LONG_S)
    classifier = OnnxClassifier(made_up_artifact, {"big": GPT_4O, "small": LLAMA}, second)
    prompt = Prompt(text="Case 7 gate road truck driver morning ticket yard coffee letter garden gate truck?")
    first = classifier.classify(prompt)
    assert await classifier.reconsider(prompt, first) is first
    assert classifier.fallbacks == 1
    classifier.close()


def test_a_second_weigher_of_another_model_is_refused(tmp_path: Path, made_up_artifact: Artifact) -> None:
    """A manifest that names a second weigher needs exactly that one beside it; one that names none needs none."""
    assert read_second_weigher(tmp_path, made_up_artifact.manifest) is None
    manifest = with_second(made_up_artifact, sha256="0" * 64).manifest
    with pytest.raises(ArtifactMissing, match=MODEL_FILE):
        read_second_weigher(tmp_path, manifest)
    for name in (MODEL_FILE, VOCABULARY_FILE):
        (tmp_path / name).write_bytes((PACKAGED / name).read_bytes())
    with pytest.raises(ArtifactMissing, match=HEAD_FILE):
        read_second_weigher(tmp_path, manifest)
    (tmp_path / HEAD_FILE).write_bytes(write_head(HEAD))
    with pytest.raises(ArtifactMismatch, match=HEAD_FILE):
        read_second_weigher(tmp_path, manifest)
    fitting = with_second(made_up_artifact, sha256=second_sha256(read_files(tmp_path))).manifest
    with pytest.raises(ArtifactMalformed, match="does not fit the encoder"):
        read_second_weigher(tmp_path, fitting)
    (tmp_path / MODEL_FILE).write_bytes(b"no graph")
    with pytest.raises(ArtifactError):
        read_second_weigher(tmp_path, manifest)


async def test_a_second_weigher_that_fits_is_read_and_asked(tmp_path: Path, made_up_artifact: Artifact) -> None:
    """The shipped encoder beside a head of the right size is asked through the whole classifier."""
    width = Encoder(*((PACKAGED / name).read_bytes() for name in (MODEL_FILE, VOCABULARY_FILE))).width
    files = {name: (PACKAGED / name).read_bytes() for name in (MODEL_FILE, VOCABULARY_FILE)}
    files[HEAD_FILE] = write_head(head_for(made_up_artifact, 0.3, width=width))
    artifact = with_second(made_up_artifact, sha256=second_sha256(files))
    write_artifact(tmp_path, msgspec.structs.replace(artifact, files=files))
    classifier = open_classifier(tmp_path, {"big": GPT_4O, "small": LLAMA})
    assert classifier.second is not None
    assert np.isfinite(classifier.second.gains("How heavy is the truck?")).all()
    classifier.close()
