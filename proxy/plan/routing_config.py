"""The configuration file's `policy:` section: how names become targets, how strict `auto` is, and weak answers."""

from typing import Final

from pydantic import Field

from accounts.caller import Escalation
from settings.types import Finite, Section, Share

DEFAULT_FLOOR: Final = 0.97
"""The minimum quality of who sets none."""


class EscalationConfig(Section):
    """Escalation of weak answers to a better target, for teams and requests that opted in."""

    max_share: Share = Field(
        default=0.1,
        description="The share of those requests, beyond a burst of 20, that a process escalates; 0 turns it off.",
    )
    max_running: int = Field(
        default=64,
        ge=1,
        le=10_000,
        description="Escalations that a process runs at once, and as many pairs of cheap models beside them.",
    )
    min_mean_logprob: Finite | None = Field(
        default=None,
        le=0,
        description="An answer that carries log-probabilities is weak when their mean is lower. Not looked at when not set.",
    )
    hold_max_bytes: int = Field(
        default=524_288,
        ge=1_024,
        le=4_194_304,
        description="A stream is held back until its end to be judged; when it grows larger, it flows on unjudged.",
    )
    hold_max_s: Finite = Field(
        default=30.0, gt=0, le=600, description="A stream that is held back for longer flows on unjudged."
    )
    agreement_wait_s: Finite = Field(
        default=20.0,
        gt=0,
        le=600,
        description="The most seconds that two cheap answers are waited for before the planned model is asked; never more than "
        "three tenths of the caller's time.",
    )
    batch_agreement_from: Finite | None = Field(
        default=0.99,
        gt=0,
        le=1,
        description="Lines of batches for `auto` with this minimum quality or a higher one are asked of two cheap models first, where "
        "their answers can be compared and that costs less. `null` leaves it to teams.",
    )


class ToolLoopsConfig(Section):
    """Tool loops of `auto`: requests in which a model's tool calls and their results follow the last user message."""

    stay: bool = Field(
        default=True,
        description="A tool loop stays at the target that its user turn began with, while that can serve it.",
    )
    max_raises: int = Field(
        default=2,
        ge=0,
        le=8,
        description="How often a loop that struggles goes to the next better target, within one user turn; 0 turns it off.",
    )
    same_call: int = Field(
        default=3, ge=2, le=100, description="A loop struggles when the same call brings nothing new so many times."
    )
    errors: int = Field(default=3, ge=2, le=100, description="A loop struggles when so many steps in a row fail.")
    unchanged: int = Field(
        default=4, ge=2, le=100, description="A loop struggles when so many steps in a row have the same result."
    )
    max_steps: int = Field(
        default=30,
        ge=4,
        le=200,
        description="A loop of more steps struggles when it goes to and fro between a few calls.",
    )


class AutoAlias(Section):
    """An alias by which the gateway chooses as for `auto`, with a policy of its own."""

    auto: tuple[str, ...] | None = Field(
        default=None,
        min_length=1,
        description="The targets it chooses from, among those of `auto`; all of those when not set.",
    )
    quality_floor: Finite | None = Field(
        default=None,
        gt=0,
        le=1,
        description="The minimum quality for requests under this name; the team's, or else `policy.quality_floor`, when not set.",
    )
    escalation: Escalation | None = Field(
        default=None,
        description="When answers under this name are asked again, or asked of two models first; the team's setting when not set.",
    )


class CacheMarksConfig(Section):
    """Marks for the prompt caches of Claudes, where a caller sets none."""

    enabled: bool = Field(
        default=True,
        description="Whether marks are set where they pay: for conversations that go on, and for teams whose prompts come again "
        "often enough for the price of writing, as measured.",
    )
    off_for_teams: tuple[str, ...] = Field(default=(), description="Ids of teams for which none are set.")


class PolicyConfig(Section):
    """Routing policy: the targets behind each name, and the strictness of `auto`."""

    auto: tuple[str, ...] | None = Field(
        default=None, min_length=1, description="The targets that `auto` chooses from; all that chat when not set."
    )
    aliases: dict[str, str | tuple[str, ...] | AutoAlias] = Field(
        default_factory=dict,
        description="Names that callers may send: each a target, targets in the order to try, `auto`, or a policy by which "
        "`auto` chooses under this name (`{auto: [...], quality_floor: 0.9}`).",
    )
    fallbacks: dict[str, tuple[str, ...]] = Field(
        default_factory=dict, description="For a target that a caller named: the targets to try after it."
    )
    quality_floor: Finite = Field(
        default=DEFAULT_FLOOR,
        gt=0,
        le=1,
        description="The minimum quality: the share that `auto` keeps of the best answers that the baseline model's money buys, so at "
        "least of its own; 1 asks for the best whatever it costs. A team may have its own. `weighbridge policy preview` tells what each "
        "one saves.",
    )
    capability_shift: float = Field(
        default=0.0,
        ge=-1,
        le=1,
        description="Added to every declared capability. Below 0 is stricter and costs more, above 0 saves more.",
    )
    degrade: bool = Field(
        default=False, description="When every capable target has failed, try the less capable ones, best first."
    )
    max_candidates: int = Field(
        default=4,
        ge=1,
        le=16,
        description="Targets that one request may try, the first included. When all of those would be our own, the last one "
        "is the first that is bought, so that there is somewhere to overflow to.",
    )
    escalation: EscalationConfig = Field(
        default=EscalationConfig(), description="Asking a better target when an answer is weak."
    )
    cache_marks: CacheMarksConfig = Field(
        default=CacheMarksConfig(), description="Marks for the prompt caches of Claudes."
    )
    tool_loops: ToolLoopsConfig = Field(
        default=ToolLoopsConfig(), description="Where tool loops stay, and when they go to a better target."
    )
