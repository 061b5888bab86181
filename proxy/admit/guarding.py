"""The guard before the plan: a request's body is judged by the rules that hold for its caller, and read anew where it was changed."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, TypeVar

import msgspec

from accounts.caller import Caller
from guard.inspector import Guard
from guard.plugin_verdicts import Question, questions, with_verdicts
from guard.ruleset import Finding, Masking, Ruleset, Verdict
from guard.walker import TooMuch, Walk
from proxy.admit.asked_answers import AskedOfAnswers
from proxy.admit.moderating import Moderation, read_whole
from proxy.admit.plugin_rules import NO_PLUGINS, PluginGuards, ask_plugins, facts_of
from proxy.errors import BadRequest, ContentFiltered, GuardUnavailable
from proxy.http.reply import Header
from proxy.parse.json_bounds import BodyReader
from proxy.parse.parsed_request import ParsedRequest
from proxy.parse.wires.wire import Wire

_log: Final = logging.getLogger("weighbridge.guard")
HEADER: Final = b"x-weighbridge-guard"
_MOST_TOLD: Final = 40
_T = TypeVar("_T")
_QUOTE: Final = ord('"')
_MANY_QUOTES: Final = 10_000


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """Whom rules may ask about a request."""

    moderation: Moderation | None = None
    plugins: PluginGuards = NO_PLUGINS
    request_id: str = ""
    """As plug-ins are told it."""


_NOBODY: Final = Asked()


class Guarded(msgspec.Struct, frozen=True, kw_only=True):
    """A request that was judged, with the rules by which its answer is."""

    rules: Ruleset
    verdict: Verdict
    parsed: ParsedRequest
    """The request to go on with."""
    masks: Callable[[], Masking]
    """The masks for what its answer must not say: none of the request's own."""
    asks: AskedOfAnswers | None = None
    """Whoever is asked about its answer; None where nobody is."""

    def check(self) -> None:
        """Raise ContentFiltered where the request is refused."""
        if self.verdict.blocked:
            raise ContentFiltered.blocked(self.verdict.blocked)


async def guarded(
    guard: Guard,
    caller: Caller,
    wire: Wire,
    parsed: ParsedRequest,
    bodies: BodyReader,
    *,
    sent: bool = False,
    asked: Asked = _NOBODY,
) -> Guarded:
    """Judge a request. `sent` is for one that was sent before, of which the answer is there; `asked` are those whom rules name.

    Raises GuardUnavailable, and BadRequest for a body of more texts than are read.
    """
    try:
        rules = await guard.rules_for(caller.guard)
    except Exception as error:
        _log.error("the rules of team %s cannot be used: %s", caller.team_id, type(error).__name__)
        raise GuardUnavailable(
            "The rules by which requests are judged cannot be used; ask an operator.", retry_after_s=5.0
        ) from error
    masks = partial(guard.masks, rules, caller.team_id)
    verdict = Verdict()
    body = parsed.body
    if rules.looks_in:
        try:
            verdict = await _beside(
                bodies, body, lambda: guard.judge(rules, caller.team_id, wire.name, body, sent=sent)
            )
        except TooMuch as error:
            raise _too_much() from error
        except Exception as error:  # noqa: BLE001 - whatever breaks, what was not judged is not sent
            verdict = _not_judged(rules, error)
    if not verdict.blocked and (rules.plugins or (rules.services and not sent)):
        asking = _Asking(asked, caller, rules, wire, parsed, bodies, sent=sent)
        verdict = await asking.judged(verdict, masks)
    if verdict.body is not None and not verdict.blocked:
        parsed = await _read_again(parsed, verdict.body, bodies)
    if verdict.own:
        parsed = msgspec.structs.replace(parsed, request=msgspec.structs.replace(parsed.request, own_only=True))
    asks = None
    if rules.of_answers:
        facts = facts_of(asked.request_id, caller, parsed)
        asks = AskedOfAnswers(rules, asked.moderation, asked.plugins, caller, facts, masks)
        if not sent and not verdict.blocked:
            asks.check()
    return Guarded(rules=rules, verdict=verdict, parsed=parsed, masks=masks, asks=asks)


def _too_much() -> BadRequest:
    return BadRequest(
        "The request has more texts, or is nested more deeply, than the guard reads: send fewer or longer parts.",
        code="too_many_values",
    )


class _Asking:
    """The rules of one request that have to ask. They come last, about the text as it would be sent."""

    def __init__(
        self,
        asked: Asked,
        caller: Caller,
        rules: Ruleset,
        wire: Wire,
        parsed: ParsedRequest,
        bodies: BodyReader,
        *,
        sent: bool,
    ) -> None:
        self._asked = asked
        self._caller = caller
        self._rules = rules
        self._wire = wire
        self._parsed = parsed
        self._bodies = bodies
        self._sent = sent

    async def judged(self, verdict: Verdict, masks: Callable[[], Masking]) -> Verdict:
        """Return the verdict with those of plug-ins, then of services. Raises GuardUnavailable and BadRequest."""
        body = verdict.body or self._parsed.body
        try:
            walk, asked = await _beside(self._bodies, body, lambda: self._read(body))
        except TooMuch as error:
            raise _too_much() from error
        if asked:
            verdict = await self._by_plugins(asked, verdict, masks)
        if verdict.blocked:
            return verdict
        if self._rules.services and not self._sent:
            return await self._by_services(verdict, walk, masks)
        written = walk.written()
        return verdict if written is None else msgspec.structs.replace(verdict, body=written)

    def _read(self, body: bytes) -> tuple[Walk, list[Question]]:
        walk = read_whole(self._wire.name, body)
        return walk, questions(self._rules.plugins, walk)

    async def _by_plugins(self, asked: list[Question], verdict: Verdict, masks: Callable[[], Masking]) -> Verdict:
        facts = facts_of(self._asked.request_id, self._caller, self._parsed)
        answers = await ask_plugins(self._asked.plugins, asked, facts, sent=self._sent)
        found = with_verdicts(verdict, answers, masks())
        # Of what was sent only the masks are wanted.
        return msgspec.structs.replace(verdict, masks=found.masks) if self._sent else found

    async def _by_services(self, verdict: Verdict, walk: Walk, masks: Callable[[], Masking]) -> Verdict:
        moderation, rules = self._asked.moderation, self._rules
        if moderation is None:
            raise GuardUnavailable("The services by which requests are judged cannot be asked here.", retry_after_s=5.0)
        # A service at an address is no engine of one's own.
        made = masks() if verdict.own else None
        shown = None if made is None else lambda text: rules.hidden(text, made)
        return await moderation.judge(self._caller, rules.services, verdict, walk, shown)


async def _beside(bodies: BodyReader, body: bytes, judge: Callable[[], _T]) -> _T:
    """Judge a body of many texts on a thread: each costs some microseconds, however short it is."""
    return await asyncio.to_thread(judge) if body.count(_QUOTE) > _MANY_QUOTES else await bodies.read(body, judge)


def _not_judged(rules: Ruleset, error: Exception) -> Verdict:
    """Return the verdict of rules that let pass what they cannot judge. Raises GuardUnavailable where one does not."""
    # Only the kind of the error: its words may repeat the text.
    _log.error("a request could not be judged: %s", type(error).__name__)
    let_pass = rules.open
    if let_pass is None:
        raise GuardUnavailable(
            "The request could not be judged, so it was not sent; try again shortly.", retry_after_s=1.0
        )
    return Verdict(findings=let_pass)


async def _read_again(parsed: ParsedRequest, body: bytes, bodies: BodyReader) -> ParsedRequest:
    again = parsed.again
    assert again is not None  # noqa: S101 - whoever parses a request can do it once more
    found = await bodies.read(body, lambda: again(body))
    # It is booked for whom its caller named, though another word is sent in that place.
    end_user = parsed.request.end_user
    return msgspec.structs.replace(found, request=msgspec.structs.replace(found.request, end_user=end_user))


def header_of(findings: Sequence[Finding]) -> tuple[Header, ...]:
    """Return the reply header that tells what was found and done: names and counts."""
    if not findings:
        return ()
    told = ", ".join(f"{each.name}={each.action}:{each.count}" for each in findings[:_MOST_TOLD])
    return ((HEADER, told.encode()),)
