"""The configuration file's `policy:` section: the targets behind names, the strictness of `auto`, and weak answers."""

from typing import Final

from pydantic import Field

from accounts.caller import Escalation
from settings.types import Finite, Section, Share

DEFAULT_FLOOR: Final = 0.97
"""The minimum quality of teams that set none."""


class EscalationConfig(Section):
    """Escalation of weak answers to a better target, for teams and requests that opted in."""

    max_share: Share = Field(
        default=0.1,
        description="Share of eligible requests, beyond a burst of 20, that a process escalates; 0 is off.",
    )
    max_running: int = Field(
        default=64,
        ge=1,
        le=10_000,
        description="Escalations, and as many pairs, that a process runs at once.",
    )
    min_mean_logprob: Finite | None = Field(
        default=None,
        le=0,
        description="An answer with a lower mean log-probability is weak.",
    )
    hold_max_bytes: int = Field(
        default=524_288,
        ge=1_024,
        le=4_194_304,
        description="A stream held back to be judged flows on unjudged above this size.",
    )
    hold_max_s: Finite = Field(
        default=30.0, gt=0, le=600, description="A stream that is held back for longer flows on unjudged."
    )
    agreement_wait_s: Finite = Field(
        default=20.0,
        gt=0,
        le=600,
        description="How long two cheap answers are waited for, at most three tenths of the caller's time.",
    )
    batch_agreement_from: Finite | None = Field(
        default=0.99,
        gt=0,
        le=1,
        description="Batch lines for `auto` at this minimum quality or higher ask two cheap models first where "
        "that costs less. `null` leaves it to teams.",
    )


class ToolLoopsConfig(Section):
    """Tool loops of `auto`: requests in which a model's tool calls and their results follow the last user message."""

    stay: bool = Field(
        default=True,
        description="A tool loop stays at the target of its user turn while that can serve it.",
    )
    max_raises: int = Field(
        default=2,
        ge=0,
        le=8,
        description="Raises of a struggling loop to the next better target within a user turn; 0 is off.",
    )
    same_call: int = Field(
        default=3, ge=2, le=100, description="Repeats of a call without news that count as struggling."
    )
    errors: int = Field(default=3, ge=2, le=100, description="Failed steps in a row that count as struggling.")
    unchanged: int = Field(
        default=4, ge=2, le=100, description="Steps in a row with the same result that count as struggling."
    )
    max_steps: int = Field(
        default=30,
        ge=4,
        le=200,
        description="A longer loop that cycles between a few calls struggles.",
    )


class AutoAlias(Section):
    """An alias by which the gateway chooses as for `auto`, with a policy of its own."""

    auto: tuple[str, ...] | None = Field(
        default=None,
        min_length=1,
        description="The targets it chooses from, among those of `auto`.",
    )
    quality_floor: Finite | None = Field(
        default=None,
        gt=0,
        le=1,
        description="Minimum quality under this name; default the team's, else `policy.quality_floor`.",
    )
    escalation: Escalation | None = Field(
        default=None,
        description="Escalation under this name; default the team's.",
    )


class CacheMarksConfig(Section):
    """Marks for the prompt caches of Claudes, where a caller sets none."""

    enabled: bool = Field(
        default=True,
        description="Sets `cache_control` marks for Claudes where cache reads save more than writes cost.",
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
        description="The minimum quality: the share that `auto` keeps of the best answers that the baseline "
        "model's money buys; 1 is the best at any cost. Teams may have their own.",
    )
    capability_shift: float = Field(
        default=0.0,
        ge=-1,
        le=1,
        description="Added to every declared capability; below 0 is stricter.",
    )
    degrade: bool = Field(
        default=False, description="When every capable target has failed, try the less capable ones, best first."
    )
    max_candidates: int = Field(
        default=4,
        ge=1,
        le=16,
        description="Targets that one request may try. If all would be our own, the last place goes to a bought one.",
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
