"""Versions of a model, the rollout of a new one, and which of the two a conversation gets. All values; no I/O."""

import re
from collections.abc import Collection, Iterator
from typing import Final, Literal
from zlib import crc32

import msgspec

PPM: Final = 1_000_000
"""Shares are integers of parts per million."""
MODEL_CHARS: Final = 128
VERSION_CHARS: Final = 64
REFERENCE_CHARS: Final = 1_024
DIGEST_CHARS: Final = 80
WORD_CHARS: Final = 64
NOTE_CHARS: Final = 500
MOST_ARGUMENTS: Final = 128
ARGUMENT_CHARS: Final = 512
_VERSION: Final = re.compile(r"\A[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")
_WEIGHTS: Final = re.compile(
    r"""\A(?:
        [a-z][a-z0-9+.-]*://\S+                             # an address, such as s3://bucket/llama or hf://meta-llama/Llama
        | (?:~|\.{0,2})/\S+                                 # a path
        | [A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(?:[@:][\w./-]+)?  # a repository of Hugging Face, with a revision
    )\Z""",
    re.VERBOSE | re.ASCII,
)
_DIGEST: Final = re.compile(r"\A(?:sha256:[0-9a-f]{64}|[0-9a-f]{40})\Z")
_SECRET_ARGUMENT: Final = re.compile(r"\A--(?:[a-z-]+-)?(?:api-key|hf-token|password|secret)(?:=|\Z)", re.IGNORECASE)
_MASK: Final = (1 << 64) - 1

Kind = Literal["weights", "adapter"]
State = Literal["settled", "canary", "rolled_back"]
"""`settled`: nothing is under way. `canary`: the candidate gets its share. `rolled_back`: the candidate gets nothing."""


class RolloutError(Exception):
    """A version or a step of a rollout was refused. The message says why, and what to do."""


class VersionExists(RolloutError):
    """The model has a version of this name; versions never change."""


class VersionUnknown(RolloutError):
    """The model has no version of this name."""


class RolloutConflict(RolloutError):
    """The step does not fit the rollout's state, or somebody else took one meanwhile."""


class BadVersion(RolloutError):
    """A field of the version cannot be used."""

    def __init__(self, message: str, field: str) -> None:
        super().__init__(message)
        self.field = field
        """Name of the field."""


class ModelVersion(msgspec.Struct, frozen=True, kw_only=True):
    """One version of a model. It never changes once it is registered. Empty fields are unknown."""

    model: str
    """The model's target: the first of its pool's `targets`, or an adapter's."""
    version: str
    kind: Kind = "weights"
    weights: str
    """The place of the weights: a repository, an object store's address, or a path."""
    digest: str = ""
    """`sha256:` and 64 hexadecimal digits, or a commit's 40."""
    precision: str = ""
    """Precision of the weights, such as bf16, fp8, int8 or awq."""
    layout: str = ""
    """The division of a replica over GPUs, such as tp4 or tp8-pp2."""
    tokenizer: str = ""
    arguments: tuple[str, ...] = ()
    """The engine's further arguments, in their order."""
    adapters: tuple[str, ...] = ()
    """LoRA adapters that belong to this version, by their targets."""
    base: str = ""
    """Of an adapter: the model that it adapts."""
    note: str = ""
    added_us: int = 0
    added_by: str = ""


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """The conditions under which a candidate is rolled back, or promoted, without anybody's doing."""

    errors: bool = True
    """Roll back when more of its attempts fail."""
    ttft_worse: float | None = 0.5
    """Roll back when its first tokens come later by more than this part; None: never."""
    promote_after: int | None = None
    """Promote after so many attempts where nothing is worse, beyond doubt; None: a person promotes."""
    tpot_worse: float | None = 0.5
    """Roll back when it takes longer for each further token by more than this part; None: never."""
    quality: bool = True
    """Roll back when more of its answers are replaced by a better model's, or judged inadequate."""


class Rollout(msgspec.Struct, frozen=True, kw_only=True):
    """The versions of a model that its pool runs, and their shares."""

    model: str
    pool: str
    stable: str = ""
    """The version promoted last; empty before the first promotion, where every version but the candidate counts."""
    candidate: str = ""
    """The version on trial, or the one rolled back; empty when neither."""
    share_ppm: int = 0
    """Share of conversations that the candidate gets, in parts per million."""
    state: State = "settled"
    since_us: int = 0
    """Time at which it came to this state, in microseconds; with it a step is told from a later one."""
    changed_by: str = ""
    reason: str = ""
    rule: Rule = Rule()

    @property
    def told(self) -> dict[str, str | float]:
        """The fields that the audit log keeps."""
        return {
            "state": self.state,
            "stable": self.stable,
            "candidate": self.candidate,
            "percent": self.share_ppm * 100 / PPM,
            "rule": msgspec.json.encode(self.rule).decode(),
        }


class RolloutTold(msgspec.Struct, frozen=True, kw_only=True):
    """A message to every process about a pool's rollout; None where the pool has none."""

    pool: str
    rollout: Rollout | None


def checked(version: ModelVersion) -> ModelVersion:
    """Return the version, when all of its fields can be used. Raises BadVersion."""
    for field, is_right, told in _demands(version):
        if not is_right:
            raise BadVersion(told, field)
    return version


def _demands(version: ModelVersion) -> Iterator[tuple[str, bool, str]]:
    """Yield each field, whether it meets its demand, and the demand in words."""
    arguments, adapters = version.arguments, version.adapters
    yield "model", 1 <= len(version.model) <= MODEL_CHARS, f"a model's name has 1 to {MODEL_CHARS} characters"
    yield (
        "version",
        _VERSION.match(version.version) is not None,
        "a version's name has 1 to 64 letters, digits, dots, dashes and underscores",
    )
    yield (
        "weights",
        len(version.weights) <= REFERENCE_CHARS and _WEIGHTS.match(version.weights) is not None,
        (
            f"say where the weights are, in at most {REFERENCE_CHARS} characters: a repository (owner/name), an address "
            "(s3://bucket/llama) or a path (/models/llama, ./llama)"
        ),
    )
    yield (
        "digest",
        not version.digest or _DIGEST.match(version.digest) is not None,
        "a digest is `sha256:` and 64 hexadecimal digits, or a commit's 40, in small letters",
    )
    for name in ("precision", "layout"):
        yield name, len(getattr(version, name)) <= WORD_CHARS, f"{name} has at most {WORD_CHARS} characters"
    yield "tokenizer", len(version.tokenizer) <= REFERENCE_CHARS, f"tokenizer has at most {REFERENCE_CHARS} characters"
    yield "note", len(version.note) <= NOTE_CHARS, f"a note has at most {NOTE_CHARS} characters"
    yield (
        "arguments",
        len(arguments) <= MOST_ARGUMENTS and all(len(each) <= ARGUMENT_CHARS for each in arguments),
        f"there are at most {MOST_ARGUMENTS} arguments of {ARGUMENT_CHARS} characters",
    )
    yield (
        "arguments",
        not any(_SECRET_ARGUMENT.match(each) for each in arguments),
        "an argument looks like a secret, which is never kept here: leave it to the engine's environment",
    )
    yield (
        "adapters",
        len(adapters) <= MOST_ARGUMENTS and all(1 <= len(each) <= MODEL_CHARS for each in adapters),
        f"there are at most {MOST_ARGUMENTS} adapters, each by its target",
    )
    yield (
        "base",
        (version.kind == "adapter") == bool(version.base),
        "an adapter, and nothing else, says which model it adapts (base)",
    )


def share_of(percent: float) -> int:
    """Return parts per million. Raises RolloutConflict for what is no canary."""
    share = round(percent * PPM / 100)
    if not 0 < share < PPM:
        raise RolloutConflict("a canary gets more than 0 and less than 100 percent; `promote` gives a version all")
    return share


def started(
    before: Rollout, candidate: str, share_ppm: int, rule: Rule, *, by: str, reason: str, now_us: int
) -> Rollout:
    """Return the rollout with a canary, or with another share of the one that runs. Raises RolloutConflict."""
    if candidate == before.stable:
        raise RolloutConflict(f"{candidate} is what {before.model} runs already")
    if before.state == "canary" and before.candidate != candidate:
        raise RolloutConflict(f"{before.candidate} is on trial; promote it or roll it back first")
    return msgspec.structs.replace(
        before,
        candidate=candidate,
        share_ppm=share_ppm,
        state="canary",
        since_us=_later(before, now_us),
        changed_by=by,
        reason=reason,
        rule=rule,
    )


def promoted(before: Rollout, version: str, *, by: str, reason: str, now_us: int) -> Rollout:
    """Return the rollout where the version gets everything. Raises RolloutConflict."""
    if before.state == "canary" and before.candidate != version:
        raise RolloutConflict(f"{before.candidate} is on trial; promote that, or roll it back first")
    if before.stable == version and before.state == "settled":
        raise RolloutConflict(f"{version} is what {before.model} runs already")
    return msgspec.structs.replace(
        before,
        stable=version,
        candidate="",
        share_ppm=0,
        state="settled",
        since_us=_later(before, now_us),
        changed_by=by,
        reason=reason,
    )


def rolled_back(before: Rollout, *, by: str, reason: str, now_us: int) -> Rollout:
    """Return the rollout whose candidate gets nothing any more. Raises RolloutConflict."""
    if before.state != "canary":
        raise RolloutConflict(f"no version of {before.model} is on trial")
    return msgspec.structs.replace(
        before, share_ppm=0, state="rolled_back", since_us=_later(before, now_us), changed_by=by, reason=reason
    )


def _later(before: Rollout, now_us: int) -> int:
    """Return a moment that no earlier step had, also where a clock went back."""
    return max(now_us, before.since_us + 1)


def gets_candidate(rollout: Rollout, root: int) -> bool:
    """Return whether the conversation gets the version on trial. The same for every turn and in every process; a larger share
    keeps those that a smaller one had, and another candidate draws others.
    """
    if not rollout.share_ppm:
        return False
    mixed = (root ^ crc32(rollout.candidate.encode()) << 32) & _MASK
    # The finaliser of splitmix64: a checksum alone would not be spread evenly.
    mixed = ((mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9) & _MASK
    mixed = ((mixed ^ mixed >> 27) * 0x94D049BB133111EB) & _MASK
    mixed ^= mixed >> 31
    return mixed * PPM >> 64 < rollout.share_ppm


def serves(rollout: Rollout, version: str, *, candidate: bool) -> bool:
    """Return whether a replica of this version serves the conversations of the candidate, or else of the stable one."""
    if candidate:
        return version == rollout.candidate
    return version == rollout.stable if rollout.stable else version != rollout.candidate


def missing(rollout: Rollout, ready: Collection[str]) -> str:
    """Return the version that is to get conversations and gets none, as no replica that takes work runs it; empty where there is none.
    `ready` are the versions of the replicas that take work.
    """
    wanted = rollout.candidate if rollout.state == "canary" else rollout.stable
    return "" if wanted in ready else wanted
