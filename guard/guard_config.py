"""The `guard` section of the configuration, and the rules that teams and organisations have beside it: one shape."""

import tomllib
from collections.abc import Sequence
from importlib.resources import files
from typing import Annotated, Any, Final, Literal, Self, get_args
from urllib.parse import urlsplit

from pydantic import BeforeValidator, Field, model_validator

from guard.bounds import MOST_PATTERN_CHARS, MOST_WORD_CHARS, MOST_WORDS
from guard.moderation import Shape
from guard.walker import Role
from settings.secret_ref import SecretRef
from settings.types import Section, Share
from settings.words import closest

InputAction = Literal["block", "own", "mask", "flag", "off"]
"""What is done with what is found in a request, the strictest first. `own`: only own engines are asked."""
OutputAction = Literal["block", "mask", "flag", "off"]
RuleKind = Literal["pii", "secret", "words", "pattern", "injection", "http", "plugin"]

FALSE_RATES: Final = (0.01, 0.003, 0.001)
"""Shares of harmless texts that the injection model takes for attempts, of which its thresholds are known."""
STRICT_RATE: Final = FALSE_RATES[-1]
MOST_RULES: Final = 100
_MOST_KINDS: Final = 200
_MOST_CATEGORIES: Final = 64
_NEEDED: Final[dict[RuleKind, str]] = {
    "pii": "entities",
    "secret": "",
    "words": "words",
    "pattern": "pattern",
    "injection": "",
    "http": "",
    "plugin": "use",
}
"""What a rule of each kind cannot do without."""
_GROUPS: Final[dict[RuleKind, str]] = {"pii": "personal", "secret": "secrets"}
_TAKEN: Final[dict[str, tuple[RuleKind, ...]]] = {
    "entities": ("pii", "secret"),
    "words": ("words",),
    "pattern": ("pattern",),
    "false_rate": ("injection",),
    **dict.fromkeys(("url", "target", "shape", "model", "key", "categories", "scores", "timeout_ms"), ("http",)),
    "use": ("plugin",),
    "window_chars": ("http", "plugin"),
}
_SOLE_ROLES: Final[frozenset[RuleKind]] = frozenset({"injection", "http"})
"""Kinds that look at what users and tools say, unless a rule names roles."""
ASKED: Final[frozenset[RuleKind]] = frozenset({"http", "plugin"})
"""Kinds that have to be asked, and waited for; whom the configuration alone may name, as they are given texts."""
_RIVALS: Final[dict[str, dict[str, str]]] = tomllib.loads((files("guard") / "rivals.toml").read_text())
_UNSEEN: Final = (
    "names, addresses, places and dates cannot be told by patterns; a service that can is asked over HTTP, and docs/guard.md says what is"
    " not seen"
)


def _named_here(table: str) -> BeforeValidator:
    """Return a validator that tells what a word of another gateway is called here. The value itself is not changed."""

    def check(value: Any) -> Any:
        own = _RIVALS[table].get(value) if isinstance(value, str) else None
        if own is not None and own != value:
            raise ValueError(f"`{value}` is another gateway's word; here it is `{own}`")
        return value

    return BeforeValidator(check)


class GuardRule(Section):
    """One thing to look for, and what is done with it."""

    name: str = Field(
        pattern=r"^[a-z][a-z0-9_-]{0,39}$",
        description="The rule's name, in headers, logs and masks: small letters, digits, `_` and `-`.",
    )
    kind: Annotated[RuleKind, _named_here("kinds")] = Field(
        description="`pii`: personal data by `entities`; `secret`: keys and passwords, all kinds unless `entities` names some; `words`: a list "
        "of words; `pattern`: an RE2 pattern; `injection`: attempts to overrule instructions, by their wording; `http`: a moderation service; `plugin`: a guard of `plugins`."
    )
    entities: list[str] | None = Field(
        default=None,
        min_length=1,
        max_length=_MOST_KINDS,
        description="The kinds to look for: `weighbridge guard kinds` lists them.",
    )
    words: list[Annotated[str, Field(min_length=1, max_length=MOST_WORD_CHARS)]] | None = Field(
        default=None, min_length=1, max_length=MOST_WORDS, description="Whole words or phrases, in any case."
    )
    pattern: str | None = Field(
        default=None,
        min_length=1,
        max_length=MOST_PATTERN_CHARS,
        description="An RE2 pattern: no look-around and no back-references.",
    )
    false_rate: float | None = Field(
        default=None,
        description="Of `injection`: the share of harmless texts that may be taken for an attempt, 0.01, 0.003 or 0.001 (the usual one, and "
        "the only one that may block).",
    )
    url: str | None = Field(
        default=None,
        min_length=1,
        max_length=2_000,
        description="Of `http`: the whole address that texts are posted to.",
    )
    target: str | None = Field(
        default=None,
        min_length=1,
        max_length=200,
        description="Of `http`, in place of `url`: a model of this gateway that answers like Llama Guard; its calls are booked to the team.",
    )
    shape: Shape | None = Field(
        default=None,
        description="Of `http`: what it speaks: `openai` (`/v1/moderations`, the usual one), `litellm` (its generic guardrail) or `llama_guard` "
        "(`/v1/chat/completions` of an engine with such a model).",
    )
    model: str | None = Field(
        default=None, min_length=1, max_length=200, description="Of `http`: the model that the service is asked for."
    )
    key: SecretRef | None = Field(
        default=None, description="Of `http`: where its key is found, `env:NAME`; sent as `Authorization: Bearer`."
    )
    categories: list[str] | None = Field(
        default=None,
        min_length=1,
        max_length=_MOST_CATEGORIES,
        description="Of `http`: the categories of the service that count. Default: all.",
    )
    scores: dict[str, Share] | None = Field(
        default=None,
        min_length=1,
        max_length=_MOST_CATEGORIES,
        description="Of `http`: scores by category from which a text counts, beside what the service itself flags.",
    )
    timeout_ms: int | None = Field(
        default=None, ge=10, le=30_000, description="Of `http`: how long a verdict is waited for; 300 when not set."
    )
    use: str | None = Field(
        default=None,
        min_length=1,
        max_length=64,
        description="Of `plugin`: the name of a plug-in of kind guard in `plugins`. `input` is the least that is done with what it finds; its "
        "verdict may be stricter.",
    )
    window_chars: int | None = Field(
        default=None,
        ge=500,
        le=100_000,
        description="Of `http` and `plugin` with `output`: streams go out by pieces of so many characters, each once it is judged. Not set: all "
        "of an answer waits for its end.",
    )
    input: Annotated[InputAction, _named_here("actions")] = Field(
        default="off",
        description="In requests. `block`: refused, where it is new; `own`: only own engines are asked; `mask`: another word is put in its "
        "place; `flag`: told.",
    )
    output: Annotated[OutputAction, _named_here("actions")] = Field(
        default="off",
        description="In answers. `block`: they end before it, as a filter ends them; `mask` and `flag` as above. Who is asked (`http`, `plugin`) "
        "blocks or flags.",
    )
    roles: list[Role] | None = Field(
        default=None,
        min_length=1,
        description="Whose texts alone are looked at: system, user, assistant, tool (results), definition (of tools). Default: all; definitions "
        "are never a reason to refuse unless they are named; of `injection` and `http` user and tool.",
    )
    on_error: Literal["closed", "open"] = Field(
        default="closed", description="`open`: when the rule cannot be judged the request passes, which is told."
    )

    @property
    def looks_at(self) -> Sequence[Role]:
        """Whose texts are looked at."""
        if self.roles is not None:
            return self.roles
        return ("user", "tool") if self.kind in _SOLE_ROLES else ROLES

    @model_validator(mode="before")
    @classmethod
    def _of_others(cls, value: Any) -> Any:
        for key in value if isinstance(value, dict) else ():
            if (here := _RIVALS["keys"].get(key)) is not None and key not in cls.model_fields:
                raise ValueError(f"`{key}` is another gateway's: {here}")
        return value

    @model_validator(mode="after")
    def _whole(self) -> Self:
        needed = _NEEDED[self.kind]
        if needed and getattr(self, needed) is None:
            raise ValueError(f"a rule of kind `{self.kind}` needs `{needed}`")
        for name, kinds in _TAKEN.items():
            if getattr(self, name) is not None and self.kind not in kinds:
                raise ValueError(
                    f"`{name}` does nothing in a rule of kind `{self.kind}`; it belongs to {' and '.join(kinds)}"
                )
        if self.input == self.output == "off":
            raise ValueError("it does nothing: set `input` or `output` to block, mask or flag, or `input` to own")
        self._check_whole_texts()
        self._check_kinds()
        return self

    def _check_whole_texts(self) -> None:
        """Refuse what cannot be done by a kind that judges texts as a whole. Raises ValueError."""
        if self.kind in ASKED and self.output == "mask":
            raise ValueError("whoever is asked about an answer lets it pass or ends it: set `output` to block or flag")
        if self.window_chars is not None and self.output == "off":
            raise ValueError("`window_chars` is for answers: set `output`, too")
        if self.kind == "injection":
            self._check_injection()
        elif self.kind == "http":
            self._check_service()

    def _check_injection(self) -> None:
        if self.output != "off":
            raise ValueError("a rule of kind `injection` judges requests alone: leave `output` out")
        rate = STRICT_RATE if self.false_rate is None else self.false_rate
        if rate not in FALSE_RATES:
            raise ValueError(f"`false_rate` must be {', '.join(f'{each:g}' for each in FALSE_RATES)}")
        if self.input == "mask":
            raise ValueError("there is nothing to mask in a text that is an attempt as a whole: flag, own or block")
        if self.input == "block" and rate > STRICT_RATE:
            raise ValueError(f"to block, the `false_rate` must be {STRICT_RATE:g}")

    def _check_service(self) -> None:
        if self.input == "mask" and self.shape != "litellm":
            raise ValueError("only a service of shape `litellm` says what stands in a text's place: block, own or flag")
        if self.shape == "llama_guard" and self.model is None and self.target is None:
            raise ValueError("a service of shape `llama_guard` needs the `model`")
        if self.scores and self.shape in {"litellm", "llama_guard"}:
            raise ValueError(f"a service of shape `{self.shape}` gives no scores")
        if (self.url is None) == (self.target is None):
            raise ValueError("a rule of kind `http` needs `url`, or `target` in its place")
        if self.url is not None:
            _check_address(self.url)
        elif self.key is not None or self.model is not None or self.shape not in {None, "llama_guard"}:
            raise ValueError("`target` says which model is asked, and how: leave `key`, `model` and `shape` out")

    def _check_kinds(self) -> None:
        """Compile what is the rule's own, and look up what it names. Raises ValueError."""
        # Patterns take megabytes, which only those have a use for who have rules.
        from guard.kinds import KINDS, BadPattern, block_list, own_kind  # noqa: PLC0415

        known = kinds_of(self.kind)
        for entity in self.entities or ():
            if entity not in known:
                raise ValueError(_no_kind(entity, self.kind, known))
        if self.kind in {"words", "pattern", "plugin"} and self.name in KINDS:
            raise ValueError(f"`{self.name}` is the name of a kind; choose another one for your own")
        try:
            if self.pattern is not None:
                own_kind(self.name, self.pattern)
            if self.words is not None:
                block_list(self.name, self.words)
        except BadPattern as error:
            raise ValueError(str(error)) from error


def _check_address(url: str) -> None:
    try:
        parts = urlsplit(url)
        usable = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable or any(char.isspace() or not char.isprintable() for char in url):
        raise ValueError("`url` must be a whole address, `https://…`")
    if "@" in urlsplit(url).netloc:
        raise ValueError("`url` must hold no password; name it as `key`")


def kinds_of(kind: RuleKind) -> tuple[str, ...]:
    """Return the names that `entities` of such a rule may have."""
    from guard.kinds import KINDS  # noqa: PLC0415

    return tuple(name for name, each in KINDS.items() if each.group == _GROUPS.get(kind))


def _no_kind(entity: str, kind: RuleKind, known: tuple[str, ...]) -> str:
    shown = entity[:40]
    own = _RIVALS["entities"].get(entity)
    if own == "":
        return f"`{shown}` is not known here: {_UNSEEN}"
    if own in known:
        return f"`{shown}` is another gateway's word; here it is `{own}`"
    near = closest(entity[:80], list(known))
    meant = f"; did you mean `{near}`?" if near else ""
    return f"`{shown}` is no kind of `{kind}`{meant} (there are {', '.join(known)})"


class GuardSection(Section):
    """What must not leave in a request, or come back in an answer."""

    rules: list[GuardRule] = Field(
        default_factory=list,
        max_length=MOST_RULES,
        description="Every organisation's floor: organisations and teams may add rules of their own, and take none of these away.",
    )

    @model_validator(mode="before")
    @classmethod
    def _of_others(cls, value: Any) -> Any:
        if isinstance(value, dict) and "guardrails" in value:
            raise ValueError(
                "`guardrails` is another gateway's: write `rules`, a list of `name`, `kind`, `input` and `output`"
            )
        return value

    @model_validator(mode="after")
    def _named_once(self) -> Self:
        names = [each.name for each in self.rules]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ValueError(f"two rules are called `{twice}`")
        return self


ROLES: Final[tuple[Role, ...]] = get_args(Role)
