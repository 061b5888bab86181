"""Changes of a month's close, each with its audit entry: a tick or a comment on a step, and the sign-off."""

from accounts.audit.entry import Actor
from api.web.changing import changing
from api.web.gateway import Gateway
from cost.close.checklist import Mark, Step, is_ready, steps
from cost.close.closing import MonthClosing, NotClosable, SignedFigures, SignedStep
from cost.close.month import Month
from cost.close.statement import statement_csv
from cost.reports.scope import ReadScope
from dashboards.finance.month_close import ClosingMonth, MonthClose
from proxy.errors import BadRequest


async def mark_step(
    gateway: Gateway,
    actor: Actor,
    scope: ReadScope,
    month: Month,
    key: str,
    *,
    ticked: bool,
    comment: str,
    comment_only: bool,
    now_us: int,
) -> Mark:
    """Tick a step, untick it, or comment on it. Raises BadRequest where that cannot be: one that waits for a tick is kept with it,
    or with `comment_only`.
    """
    facts = await MonthClose(gateway.database, gateway.finance.savings, lambda: now_us).facts(scope, month)
    step = next((each for each in steps(facts) if each.key == key), None)
    if step is None:
        raise BadRequest("The month has no such step.", param="step")
    if ticked and not step.can_be_ticked:
        raise BadRequest(
            "This step settles itself, or needs the work that it names; it cannot be ticked.", param="step"
        )
    was_ticked = step.mark is not None and step.mark.ticked and not step.is_outdated
    if step.can_be_ticked and not (ticked or was_ticked or comment_only):
        raise BadRequest("Tick “Looked at, and right” to settle this step, or keep the comment alone.", param="ticked")
    organisation_id = scope.organisation_id
    async with changing(gateway.identity.audit, actor, "month.marked", organisation_id) as change:
        closing = MonthClosing(change.within, lambda: now_us)
        try:
            mark = await closing.mark(
                organisation_id, month, key, ticked=ticked, said=step.said, comment=comment, by=actor.name
            )
        except NotClosable as error:
            raise BadRequest(f"{error}.", param="month") from error
        change.tell("month", f"{month.text}/{key}", _as_told(step.mark), _as_told(mark))
    return mark


async def sign_off(
    gateway: Gateway, actor: Actor, scope: ReadScope, month: Month, *, comment: str, now_us: int, names: dict[str, str]
) -> SignedFigures:
    """Sign a month off with its figures as they are, and lock it. Raises BadRequest where steps are left."""
    # What callers used is in journals for a moment; afterwards it would be late.
    await gateway.finance.drain.drain_now()
    organisation_id = scope.organisation_id
    async with changing(gateway.identity.audit, actor, "month.signed", organisation_id, reason=comment) as change:
        closing = MonthClosing(change.within, lambda: now_us)
        await closing.hold()
        # Nobody can post to the month now, so any connection reads the same.
        found = await MonthClose(gateway.database, gateway.finance.savings, lambda: now_us).read(scope, month)
        listed = steps(found.facts)
        if not is_ready(listed):
            raise BadRequest("Some steps are not done; the list says which.", param="month")
        figures = _figures(found, listed)
        statement = statement_csv(month, organisation_id, found.lines, names, gateway_nanousd=found.gateway_nanousd)
        try:
            await closing.sign(organisation_id, month, figures, statement, by=actor.name, comment=comment)
        except NotClosable as error:
            raise BadRequest(f"{error}.", param="month") from error
        change.tell("month", month.text, None, {"cost_nanousd": figures.cost_nanousd, "requests": figures.requests})
    return figures


def _figures(found: ClosingMonth, listed: tuple[Step, ...]) -> SignedFigures:
    spent, first = found.facts.spent, found.savings.comparisons[0]
    return SignedFigures(
        parts=spent.parts,
        requests=spent.requests,
        served=spent.served,
        attempts=spent.attempts,
        input_tokens=spent.input_tokens,
        output_tokens=spent.output_tokens,
        baseline_nanousd=spent.baseline_nanousd,
        gateway_nanousd=found.gateway_nanousd,
        verdict=found.savings.verdict,
        saved_share="" if first.share is None else str(first.share),
        steps=tuple(
            SignedStep(
                key=step.key,
                title=step.title,
                said=step.said,
                ticked_by=step.mark.by if step.mark is not None and step.mark.ticked else "",
                comment=step.mark.comment if step.mark is not None else "",
            )
            for step in listed
        ),
    )


def _as_told(mark: Mark | None) -> dict[str, object] | None:
    return None if mark is None else {"ticked": mark.ticked, "comment": mark.comment, "said": mark.said}
