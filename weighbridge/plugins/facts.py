"""The facts that plug-ins are given and what they return: frozen, and without headers or keys.

A later version of this package may add fields with a default, never remove one; a change of meaning is a new number in
`PROTOCOLS`. So build them by name.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, get_args

Kind = Literal["guard", "scorer", "exporter", "authenticator", "dialect"]
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
Direction = Literal["input", "output"]
"""From the caller, or from the model."""
Action = Literal["pass", "block", "mask", "own", "flag"]
"""`own`: only models on own GPUs may see it. `flag`: nothing but a count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestFacts:
    """What is known of one request before a model is asked."""

    request_id: str
    organisation_id: str = ""
    team_id: str = ""
    key_id: str = ""
    """The public id of the key, never the key."""
    operation: str = "chat"
    model: str = ""
    """As the caller named it."""
    tier: str = "interactive"
    stream: bool = False
    input_tokens: int = 0
    """An estimate."""
    tools: int = 0
    images: int = 0
    text: str | None = None
    """The last user message, where the configuration grants `text: true`."""
    is_sample: bool = False
    """True for what `config check` and the test kit make up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """One text of a request or an answer. `path` is its place there, such as `messages[2].content`."""

    value: str
    role: str = "user"
    path: str = ""
    direction: Direction = "input"


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """What a guard found: the characters `start` to `end` of `texts[text]`. `kind` is a name for counts, never the text."""

    text: int
    start: int
    end: int
    kind: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A guard's judgement. `mask` needs `spans`. `name` says for counts what was found, never the text itself."""

    action: Action = "pass"
    spans: tuple[Span, ...] = ()
    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A target that may answer. Money is nano-dollars: 1,000,000,000 are a dollar."""

    target_id: str
    provider: str = ""
    own: bool = False
    """True on GPUs of one's own."""
    expected_nanousd: int | None = None
    """What the request is expected to cost there; None where the price is unknown."""
    adequate: float | None = None
    """The predicted chance that its answer is good enough, where it is known."""
    max_context_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """A scorer's word on one candidate: it is not asked where `veto` says why, and is compared as if it cost `margin_nanousd` more."""

    target_id: str
    veto: str = ""
    margin_nanousd: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One finished request. `request_id` is unique: a receiver that has it already may leave it out."""

    request_id: str
    ended_at: float
    """Seconds since 1970."""
    status: int
    """As the caller saw it; 499: it hung up."""
    error_code: str | None = None
    duration_s: float = 0.0
    ttft_s: float | None = None
    """Seconds to the first token."""
    organisation_id: str = ""
    team_id: str = ""
    key_id: str = ""
    end_user: str = ""
    operation: str = "chat"
    asked_model: str = ""
    tier: str = "interactive"
    stream: bool = False
    target_id: str | None = None
    """The target that answered; None where none did."""
    provider: str = ""
    reason: str = ""
    attempts: int = 0
    input_tokens: int = 0
    cached_input_tokens: int = 0
    output_tokens: int = 0
    cost_nanousd: int | None = 0
    """None where a price is unknown."""
    baseline_nanousd: int | None = None
    complexity: float | None = None
    escalated_from: str | None = None
    text: str | None = None
    """The last user message: where `text: true` is granted, and of teams that let prompts be kept."""
    is_sample: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Whom an authenticator knows: a key of the gateway, by its team and name, as which the caller is served and booked."""

    team_id: str
    key_name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """What a dialect is told of one call. The address and the key are the gateway's business."""

    request_id: str
    model: str
    """The model's name at the upstream."""
    stream: bool = False
    is_sample: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Outgoing:
    """A request as a dialect writes it. `path` is added to the deployment's `base_url`."""

    path: str
    body: bytes
    headers: Mapping[str, str] | None = None
    """Beside those of the gateway; none that says who calls."""
