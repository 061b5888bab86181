"""Plan for a load that is split between several models: GPUs and dollars a year."""

import math
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from typing import Final

import msgspec

from planner.plans.economics import HOURS_A_YEAR
from planner.plans.plan_errors import PlanRefused
from planner.plans.planning import Plan, Question, plan

_MOST_PARTS: Final = 20


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """The part of one model in a mixture."""

    model: str
    share: Decimal
    requests_per_s: float
    tokens_per_s: Decimal
    gpus: int
    tokens_per_gpu: Decimal
    """Tokens per second and GPU, prompt and completion together."""
    source: str
    usd_per_year: Decimal | None


class Mixture(msgspec.Struct, frozen=True, kw_only=True):
    """The plan of a whole mixture."""

    requests_per_s: float
    tokens_per_s: Decimal
    parts: tuple[Part, ...]
    gpus: int
    usd_per_gpu_hour: Decimal | None
    overhead: Decimal
    usd_per_year: Decimal | None


def shares_of(text: str) -> dict[str, Decimal]:
    """Parse shares such as `llama-3-8b:0.7,llama-3-70b:0.3`. Raises PlanRefused unless they add up to 1."""
    shares: dict[str, Decimal] = {}
    for part in text.split(","):
        name, _, figure = part.strip().rpartition(":")
        if not name or name in shares:
            raise PlanRefused("a mixture is NAME:SHARE,NAME:SHARE, each name once")
        shares[name] = _share(figure)
    if len(shares) > _MOST_PARTS:
        raise PlanRefused(f"a mixture has at most {_MOST_PARTS} models")
    if sum(shares.values()) != 1:
        raise PlanRefused(f"the shares add up to {sum(shares.values())}, not to 1")
    return shares


def _share(text: str) -> Decimal:
    try:
        share = Decimal(text)
    except InvalidOperation:
        raise PlanRefused(f"`{text}` is no share; write 0.7 for 70 %") from None
    if not share.is_finite() or not 0 < share <= 1:
        raise PlanRefused("a share is above 0 and at most 1")
    return share


def mixture_of(
    parts: Mapping[str, tuple[Decimal, Question]], *, requests_per_s: float, tokens_per_gpu: Mapping[str, float]
) -> Mixture:
    """Plan each part by itself, or by arithmetic where its tokens per second and GPU were given.

    `parts` has each model's share and its question at that share of the requests. Raises PlanRefused.
    """
    unknown = set(tokens_per_gpu) - set(parts)
    if unknown:
        raise PlanRefused(f"--tokens-per-gpu names {', '.join(sorted(unknown))}, which the mixture does not have")
    counted = [_part(name, share, question, tokens_per_gpu.get(name)) for name, (share, question) in parts.items()]
    any_question = next(iter(parts.values()))[1]
    dollars = [part.usd_per_year for part in counted]
    return Mixture(
        requests_per_s=requests_per_s,
        tokens_per_s=sum((part.tokens_per_s for part in counted), Decimal(0)),
        parts=tuple(counted),
        gpus=sum(part.gpus for part in counted),
        usd_per_gpu_hour=_price(any_question),
        overhead=any_question.overhead,
        usd_per_year=sum((each for each in dollars if each is not None), Decimal(0)) if None not in dollars else None,
    )


def _part(name: str, share: Decimal, question: Question, per_gpu: float | None) -> Part:
    flow = Decimal(repr(question.requests_per_s)) * question.work.whole
    if per_gpu is None:
        planned: Plan = plan(question)
        gpus, source = planned.gpus, f"{planned.replicas:,} x TP={planned.tp}, {planned.throughput_source}"
    else:
        # Plain arithmetic, as documents do it: not even rounded to whole replicas.
        gpus, source = math.ceil(flow / Decimal(repr(per_gpu))), f"{per_gpu:,g} tokens a second and GPU, as given"
    price = _price(question)
    return Part(
        model=name,
        share=share,
        requests_per_s=question.requests_per_s,
        tokens_per_s=flow,
        gpus=gpus,
        tokens_per_gpu=flow / gpus,
        source=source,
        usd_per_year=None if price is None else gpus * price * question.overhead * HOURS_A_YEAR,
    )


def _price(question: Question) -> Decimal | None:
    return question.gpu.usd_per_hour if question.usd_per_gpu_hour is None else question.usd_per_gpu_hour
