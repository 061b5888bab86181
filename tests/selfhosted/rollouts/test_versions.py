"""Versions and steps of a rollout, and who gets the version on trial."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from selfhosted.rollouts.versions import (
    PPM,
    BadVersion,
    ModelVersion,
    Rollout,
    RolloutConflict,
    Rule,
    State,
    checked,
    gets_candidate,
    missing,
    promoted,
    rolled_back,
    serves,
    share_of,
    started,
)

ROOTS = st.integers(0, 2**64 - 1)
SHARES = st.integers(1, PPM - 1)
GOOD = ModelVersion(model="llama", version="v2", weights="hf://meta/llama")


def canary(share_ppm: int = PPM // 5, **changes: str) -> Rollout:
    plain = Rollout(model="llama", pool="own", candidate="v2", share_ppm=share_ppm, state="canary", since_us=5)
    return msgspec.structs.replace(plain, **changes)


@given(ROOTS, SHARES, SHARES)
def test_a_larger_share_keeps_the_conversations_of_a_smaller_one(root: int, one: int, other: int) -> None:
    """So a conversation changes its version at most once while a canary grows; with no share nobody gets it."""
    small, large = sorted((one, other))
    assert gets_candidate(canary(large), root) or not gets_candidate(canary(small), root)
    assert not gets_candidate(canary(0), root)


@given(st.integers(0, 2**32 - 60_000), st.sampled_from([0.01, 0.05, 0.2, 0.5, 0.9]))
def test_the_share_is_what_was_asked_for(first: int, share: float) -> None:
    """Of any 50,000 checksums in a row, the hardest case for a hash, within five standard deviations."""
    rollout = canary(round(share * PPM))
    hits = sum(gets_candidate(rollout, root) for root in range(first, first + 50_000, 10))
    assert abs(hits / 5_000 - share) < 5 * (share * (1 - share) / 5_000) ** 0.5


def test_another_candidate_draws_other_conversations() -> None:
    """The same few do not bear every trial."""
    both = sum(gets_candidate(canary(), root) and gets_candidate(canary(candidate="v3"), root) for root in range(9_999))
    assert 0.02 < both / 9_999 < 0.06


@pytest.mark.parametrize(
    ("rollout", "candidate", "served"),
    [
        (canary(), True, {"v2"}),
        (canary(), False, {"", "v0", "v1"}),
        (canary(stable="v1"), False, {"v1"}),
        (canary(0, state="rolled_back"), False, {"", "v0", "v1"}),
        (canary(0, candidate="", stable="v2", state="settled"), False, {"v2"}),
    ],
)
def test_which_replicas_serve_whom(rollout: Rollout, candidate: bool, served: set[str]) -> None:
    """Before the first promotion all but the candidate are the stable ones; afterwards only those that say so."""
    assert {each for each in ("", "v0", "v1", "v2") if serves(rollout, each, candidate=candidate)} == served


def test_steps_in_their_order() -> None:
    """Canary, a larger share, rollback, another canary, promotion; each later than the one before."""
    step = {"by": "ada", "reason": "", "now_us": 7}
    first = started(Rollout(model="llama", pool="own"), "v2", 50_000, Rule(), **step)  # type: ignore[arg-type]
    grown = started(first, "v2", 200_000, Rule(), **step)  # type: ignore[arg-type]
    back = rolled_back(grown, **step)  # type: ignore[arg-type]
    again = started(back, "v3", 50_000, Rule(), **step)  # type: ignore[arg-type]
    done = promoted(again, "v3", **step)  # type: ignore[arg-type]
    assert [each.since_us for each in (first, grown, back, again, done)] == [7, 8, 9, 10, 11]
    assert (back.state, back.candidate, back.share_ppm) == ("rolled_back", "v2", 0)
    assert (done.state, done.stable, done.candidate) == ("settled", "v3", "")
    for refused in (
        lambda: started(grown, "v3", 1, Rule(), **step),  # type: ignore[arg-type]
        lambda: started(done, "v3", 1, Rule(), **step),  # type: ignore[arg-type]
        lambda: promoted(grown, "v3", **step),  # type: ignore[arg-type]
        lambda: promoted(done, "v3", **step),  # type: ignore[arg-type]
        lambda: rolled_back(back, **step),  # type: ignore[arg-type]
        lambda: share_of(100),
        lambda: share_of(0),
    ):
        with pytest.raises(RolloutConflict):
            refused()


@pytest.mark.parametrize(
    "fields",
    [
        {"version": "a b"},
        *({"weights": weights} for weights in ("", "nonsense", "my weights/llama", "/", "s3://", "a/b/c d", "x/y\n")),
        {"digest": "sha256:abc"},
        {"arguments": ("--api-key=sk-1",)},
        {"arguments": ("--hf-token", "x")},
        {"kind": "adapter"},
        {"base": "llama"},
        {"precision": "x" * 65},
    ],
)
def test_what_is_no_version(fields: dict[str, object]) -> None:
    """Each is refused; secrets too."""
    with pytest.raises(BadVersion) as refused:
        checked(msgspec.structs.replace(GOOD, **fields))
    assert refused.value.field in {*fields, "base"}


def test_arguments_that_only_sound_like_secrets() -> None:
    """A tokenizer and a number of tokens are none."""
    harmless = msgspec.structs.replace(GOOD, arguments=("--tokenizer=x", "--max-num-batched-tokens", "8192"))
    assert checked(harmless) is harmless


@pytest.mark.parametrize(
    ("state", "ready", "told"),
    [
        ("canary", {"v1"}, "v2"),
        ("canary", {"v1", "v2"}, ""),
        ("settled", {"v2"}, "v1"),
        ("settled", {"v1"}, ""),
        ("rolled_back", {"v1"}, ""),
    ],
)
def test_a_version_that_nobody_runs_is_told(state: State, ready: set[str], told: str) -> None:
    """It has a share and gets none of it."""
    rollout = Rollout(model="llama", pool="own", stable="v1", candidate="v2", share_ppm=500_000, state=state)
    assert missing(rollout, ready) == told
    assert missing(Rollout(model="llama", pool="own"), set()) == ""
