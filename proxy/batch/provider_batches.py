"""The provider batch runner: hands lines over to providers' batch APIs, from the decision to their answers. Any
number of processes may do it.

It looks at the batches in progress, chooses the cheapest option that is in time for each line, and hands lines over in
groups; each group is then polled until the provider has answered it, or until its lines are needed elsewhere. A group
is recorded in the database before the provider hears of it, so another process can go on with it whenever this one
dies.
"""

import asyncio
import logging
import math
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Final, Protocol

import msgspec
from sqlalchemy.exc import SQLAlchemyError

from accounts.caller import Caller
from cost.ledger.entries import HANDED, Entry, orphan_settlement, void_of
from providers.batch_apis.batch_api import BatchApi, BatchCall, CallOutcome, HandedBatch
from providers.errors import (
    ConnectFailed,
    RequestRejected,
    UpstreamError,
    UpstreamRateLimited,
    UpstreamRefusedUs,
)
from providers.target import Deployment
from proxy.batch.batch import WINDOW_US, Batch, ClaimedLine, LineResult
from proxy.batch.batch_config import BatchSection
from proxy.batch.estimate import (
    CANCEL_S,
    LOOKED_AT,
    OptionTimes,
    at_providers_s,
    most_lines,
    needed_s,
    option_times,
    turnaround_s,
)
from proxy.batch.execution_options import ExecutionOption, cheapest_option
from proxy.batch.line_protocol import LineRequest, ProviderBatchLine, ProviderBatchLines
from proxy.batch.lines import request_id, result_of
from proxy.batch.observers import ProviderBatchCount
from proxy.batch.provider_batch_store import NOTHING_OUT, Out, ProviderBatchRecord, ProviderBatchStore
from proxy.batch.scheduler import Slack, left_s_of
from proxy.batch.store import BatchStore
from proxy.errors import GuardUnavailable, Refused

_log: Final = logging.getLogger("weighbridge.batch")
_DATABASE_FAILS: Final = (SQLAlchemyError, OSError, TimeoutError)

MOST_BYTES: Final = 64 * 1024 * 1024
"""The largest group, by the bytes of its bodies."""
_LOOK_AGAIN_S: Final = 300.0
"""Seconds after which lines that another option was cheaper for are looked at again."""
_REFUSED_S: Final = 600.0
"""Seconds for which a deployment is left alone that refused a batch for another reason than its pace."""
_PACED_S: Final = 60.0
"""Seconds for which one is left alone for its provider's pace, where the refusal names none."""
_MOST_PACED_S: Final = 3_600.0
_SETTLED_S: Final = 60.0
"""Seconds after its beginning from which on a batch that cannot be found was never made."""
_LOST_S: Final = 100_000.0
"""Seconds after its beginning after which a batch is given up: more than a day."""
_FORGET_S: Final = 604_800.0
"""Seconds for which a provider is asked to delete its part of a batch: a week."""
_FORGET_LATER: Final = 0.125
"""The part of a batch's age after which the deletion is asked for again, so that it is asked ever more seldom."""
_RESULTS_AT_A_TIME: Final = 200
_ALL: Final = 2**31 - 1
_OK: Final = 200


def set_aside_s(error: UpstreamError) -> float:
    """Return the seconds for which nothing is handed over after a refusal: the refusal's own, within bounds."""
    is_pace = error.owner == "pace"
    if error.retry_after_s is None:
        return _PACED_S if is_pace else _REFUSED_S
    return min(error.retry_after_s, _MOST_PACED_S if is_pace else _REFUSED_S)


class Allowed(Protocol):
    """The budgets that hold money for lines that are handed over."""

    async def hold(self, name: str, reserves: Sequence[tuple[Entry, int | None]]) -> bool:
        """Hold money for these reserves under a name. Return False where a hard budget has too little."""
        ...

    async def free(self, name: str) -> None:
        """Give back the money held under a name."""
        ...


class _Chosen(msgspec.Struct, frozen=True):
    line: ClaimedLine
    handing: ProviderBatchLine


class _Group(msgspec.Struct):
    """Lines of one batch for one deployment."""

    give_up_s: float | None
    """Seconds until they are taken back; None without a deadline."""
    most_lines: int
    chosen: list[_Chosen] = []
    size: int = 0

    def has_room(self) -> bool:
        return len(self.chosen) < self.most_lines and self.size < MOST_BYTES

    def add(self, each: _Chosen) -> None:
        self.chosen.append(each)
        self.size += len(each.handing.body)


class _Looked(msgspec.Struct):
    """The progress of looking through the lines of a batch, by their places."""

    since: float
    at: int = -1
    """The place of the last line of this round."""
    decided: int = -1
    """The place of the last line of any round: all waiting lines up to it take another option."""


class ProviderBatchRunner:
    """The runner of provider batches in one process."""

    def __init__(
        self,
        *,
        section: BatchSection,
        batches: BatchStore,
        store: ProviderBatchStore,
        line: ProviderBatchLines,
        apis: Mapping[str, BatchApi],
        deployments: Callable[[], Mapping[str, Deployment]],
        caller_of: Callable[[str], Awaitable[Caller | None]],
        is_blocked: Callable[[str], Awaitable[bool]],
        body_of: Callable[[Batch, ClaimedLine], Awaitable[bytes]],
        slacks: Callable[[], Mapping[str, Slack]],
        speed: Callable[[], float | None],
        money: Allowed,
        holder: str,
        clock: Callable[[], float],
        rest_s: Callable[[], float] = lambda: 0.0,
        count: Callable[[ProviderBatchCount, int], None] = lambda _what, _number: None,
    ) -> None:
        """`deployments` returns those with a batch API, by id; `slacks` the runner's latest slack by batch, `speed`
        its tokens a second, and `rest_s` the seconds that it rests while there is nothing to do.
        """
        self._section = section
        self._batches = batches
        self._store = store
        self._line = line
        self._apis = apis
        self._deployments = deployments
        self._caller_of = caller_of
        self._is_blocked = is_blocked
        self._body_of = body_of
        self._slacks = slacks
        self._speed = speed
        self._money = money
        self._holder = holder
        self._clock = clock
        self._rest_s = rest_s
        self._count = count
        # Two processes that look at the same one at once do no harm.
        self._lease_us = int(2 * section.lease_s * 1_000_000)
        self._looked: dict[str, _Looked] = {}
        self._refused_until: dict[str, float] = {}

    async def run(self, is_draining: Callable[[], bool]) -> None:
        """Hand over and poll batches, for ever."""
        while True:
            try:
                await self.poll()
                if not is_draining():
                    await self.hand_over()
            except _DATABASE_FAILS as error:
                _log.warning("batch: the database does not answer: %s", type(error).__name__)
            except Exception:  # noqa: BLE001 - the loop must outlive any one round
                _log.exception("a round of handing over failed; the next one follows")
            await self._pause()

    async def _pause(self) -> None:
        """Rest as long as the runner does; new work of the runner is soon noticed here."""
        began, poll_s = self._clock(), self._section.poll_s
        while True:
            await asyncio.sleep(poll_s)
            if self._clock() - began + poll_s > self._rest_s():
                return

    # Deciding.

    async def hand_over(self) -> None:
        """Do one round: of each batch, hand over some lines for which a provider's batch API is the cheapest option."""
        deployments = self._deployments()
        if not deployments:
            return
        live = await self._batches.live()
        self._looked = {each.batch_id: self._looked.get(each.batch_id, _Looked(self._clock())) for each in live}
        turnarounds = {name: await self._store.turnaround_s(name) for name in deployments}
        out = await self._store.out()
        found = self._slacks()
        for batch in live:
            slack = found.get(batch.batch_id)
            if slack is not None:
                # Found by the runner, which looks at all batches first.
                await self._look_through(batch, slack, turnarounds, out.get(batch.batch_id, NOTHING_OUT))

    def bound(self, batch: Batch) -> int | None:
        """Return the place up to which lines may take another option, for lines that are decided one by one; None for
        all lines. No line waits here for a decision once time presses, nor in the second half of a window while no
        speed is known.
        """
        left_s, slack = left_s_of(batch, self._batches.now_us()), self._slacks().get(batch.batch_id)
        if not self._deployments():
            return None
        if left_s is not None and slack is not None:
            window_s = (WINDOW_US[batch.completion_window] or 0) / 1_000_000
            if slack.slack_s is None and left_s < window_s / 2:
                return None
            if slack.slack_s is not None and not slack.is_easy:
                return None
        looked = self._looked.get(batch.batch_id)
        return -1 if looked is None else looked.decided

    async def _look_through(
        self, batch: Batch, slack: Slack, turnarounds: Mapping[str, float | None], out: Out
    ) -> None:
        left_s = left_s_of(batch, self._batches.now_us())
        needed = needed_s(slack, left_s)
        handed_s = at_providers_s(batch, out, self._speed())
        by_name = {
            name: option_times(left_s, needed, handed_s, turnaround_s(told)) for name, told in turnarounds.items()
        }
        looked = self._looked[batch.batch_id]
        caller = await self._caller_of(batch.key_id)
        late = left_s is not None and all(each.provider_s > left_s for each in by_name.values())
        if await self._is_blocked(batch.key_id):
            return
        if caller is None or late:
            looked.decided = _ALL
            return
        if self._clock() - looked.since > _LOOK_AGAIN_S:
            looked.at, looked.since = -1, self._clock()
        groups: dict[str, _Group] = {}
        for line in await self._store.peek(batch.batch_id, looked.at, LOOKED_AT):
            handing = await self._chosen(batch, caller, line, by_name, left_s)
            if handing is not None:
                name = handing.deployment.deployment_id
                group = groups.get(name)
                if group is None:
                    give_up_s = None if left_s is None else max(0.0, left_s - by_name[name].turn_back_s)
                    most = most_lines(batch, turnarounds[name], left_s, out)
                    group = groups[name] = _Group(give_up_s, most)
                if not group.has_room():
                    # It waits for the next group, and those after it with it.
                    break
                group.add(_Chosen(line, handing))
            looked.at = line.place
        for group in groups.values():
            if group.chosen:
                await self._begin(batch, group)
        looked.decided = max(looked.decided, looked.at)

    async def _chosen(
        self,
        batch: Batch,
        caller: Caller,
        line: ClaimedLine,
        by_name: Mapping[str, OptionTimes],
        left_s: float | None,
    ) -> ProviderBatchLine | None:
        """Return the line as a provider takes it, where that is the cheapest option that is in time."""
        # Planning is a millisecond of work, and many lines of it must not keep the loop from others.
        await asyncio.sleep(0)
        try:
            asked = await self._asked(batch, caller, line, request_id(batch, line))
            offers = await self._line.offers(asked, flex=self._section.flex)
        except Refused:
            # Asked as usual, it gets its refusal.
            return None
        handing = offers.handing
        if handing is None or self._is_refused(handing.deployment):
            return None
        taken = by_name.get(handing.deployment.deployment_id)
        if taken is None:
            return None
        takes_s = {"own": taken.own_s, "flex": taken.flex_s, "provider": taken.provider_s, "calls": taken.calls_s}
        ways = [
            ExecutionOption(name=name, cost_nanousd=cost, takes_s=takes_s[name]) for name, cost in offers.costs.items()
        ]
        return handing if cheapest_option(ways, left_s).name == "provider" else None

    def _is_refused(self, deployment: Deployment) -> bool:
        return self._clock() < self._refused_until.get(deployment.deployment_id, -math.inf)

    # Acting.

    async def _begin(self, batch: Batch, group: _Group) -> None:
        """Hand a group over: money first, then the database, then the provider."""
        handed_id = f"{HANDED}{secrets.token_hex(12)}"
        reserves = [(each.handing.reserve, each.handing.most_nanousd) for each in group.chosen]
        if not await self._money.hold(handed_id, reserves):
            return
        handings = {each.line.number: each.handing for each in group.chosen}
        first = group.chosen[0].handing
        now_us = self._batches.now_us()
        give_up_s = _LOST_S if group.give_up_s is None else min(_LOST_S, group.give_up_s)

        def reserve_of(line: ClaimedLine) -> Entry:
            named = request_id(batch, line)
            return msgspec.structs.replace(handings[line.number].reserve, request_id=named, boot_id=handed_id)

        lines = await self._store.hand_over(
            {
                "handed_id": handed_id,
                "batch_id": batch.batch_id,
                "target_id": first.target_id,
                "deployment_id": first.deployment.deployment_id,
                "give_up_us": now_us + int(give_up_s * 1_000_000),
            },
            list(handings),
            reserve_of,
            holder=self._holder,
            lease_us=self._lease_us,
        )
        if not lines:
            await self._money.free(handed_id)
            return
        self._count("handed", len(lines))
        calls = [BatchCall(custom_id=custom_id(handed_id, line), body=handings[line.number].body) for line in lines]
        await self._send(handed_id, batch, first, calls)

    async def _send(self, handed_id: str, batch: Batch, first: ProviderBatchLine, calls: Sequence[BatchCall]) -> None:
        deployment = first.deployment
        api = self._apis[deployment.batch_api or ""]
        keeping = asyncio.create_task(self._keep(handed_id))
        try:
            made = await api.create(deployment, handed_id, first.path, calls)
        except (ConnectFailed, RequestRejected, UpstreamRefusedUs, UpstreamRateLimited) as error:
            # Nothing was made of it.
            _log.warning("batch: %s takes no batch: %s", deployment.deployment_id, error.detail or error.public)
            self._refused_until[deployment.deployment_id] = self._clock() + set_aside_s(error)
            record = ProviderBatchRecord(
                handed_id=handed_id,
                batch_id=batch.batch_id,
                target_id=first.target_id,
                deployment_id=deployment.deployment_id,
                state="making",
                upstream_id="",
                lines=len(calls),
                lines_left=len(calls),
                answered=0,
                created_us=0,
                give_up_us=0,
                look_us=0,
            )
            # A file that was uploaded before may be there all the same.
            await self._end(record, "refused", failed=False, leaves=api.names_batches)
            return
        except UpstreamError as error:
            # Whether it was made shows when it is looked for.
            _log.warning("batch: %s did not say whether it took a batch: %s", deployment.deployment_id, error.public)
            await self._store.look_later(handed_id, self._next_look_us())
            return
        finally:
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)
        if not await self._store.made(handed_id, made, self._next_look_us()):
            # This process stood still for so long that another one found no batch, and let its lines go other ways.
            _log.error(
                "batch: %s took a batch that nobody waits for any more; it is cancelled", deployment.deployment_id
            )
            await api.cancel(deployment, made)

    async def _keep(self, handed_id: str) -> None:
        """Keep other processes from taking this one for dead while it hands over, however long the upload lasts."""
        while True:
            await asyncio.sleep(self._section.lease_s / 3)
            try:
                await self._store.hold(handed_id, self._holder, self._lease_us)
            except _DATABASE_FAILS as error:
                _log.warning("batch: a lease could not be renewed: %s", type(error).__name__)

    # Polling batches at providers.

    async def poll(self) -> None:
        """Poll every batch that is due."""
        due_us = self._batches.now_us()
        while True:
            handed = await self._store.take_due(due_us, self._holder, self._lease_us)
            if handed is None:
                return
            deployment = self._deployments().get(handed.deployment_id)
            try:
                if deployment is None:
                    await self._wait_or_give_up(handed)
                elif handed.state == "making":
                    await self._find(handed, deployment)
                elif handed.state == "forgetting":
                    await self._forget(handed, deployment)
                else:
                    await self._look(handed, deployment)
            except UpstreamError as error:
                _log.warning("batch: %s says nothing of a batch: %s", handed.deployment_id, error.public)
                await self._wait_or_give_up(handed)
            except GuardUnavailable:
                # They are paid for, and there tomorrow as well.
                _log.warning("batch: answers of %s cannot be judged now and are collected later", handed.deployment_id)
                await self._wait_or_give_up(handed)

    async def _find(self, handed: ProviderBatchRecord, deployment: Deployment) -> None:
        """Find a batch at the provider whose making was not confirmed."""
        api = self._apis[deployment.batch_api or ""]
        found = await api.find(deployment, handed.handed_id, handed.created_us / 1_000_000, handed.lines)
        if not api.names_batches:
            found = await self._matching_ids(handed, deployment, api, found)
        if found and found[0]:
            await self._store.made(handed.handed_id, found[0], 0)
        elif not found and self._age_s(handed) > _SETTLED_S:
            # It was never made: nothing was paid for, and its lines are as they were.
            await self._end(handed, "lost", failed=False)
        else:
            await self._wait_or_give_up(handed)

    async def _matching_ids(
        self, handed: ProviderBatchRecord, deployment: Deployment, api: BatchApi, found: Sequence[str]
    ) -> list[str]:
        """Return the ids that are of this batch. An empty name stands for one that still runs and may be."""
        known = await self._store.known_ids(deployment.deployment_id)
        open_ones = False
        for batch_id in found:
            if batch_id in known:
                continue
            batch = await api.look(deployment, batch_id)
            if not batch.outcome:
                open_ones = True
                continue
            async for outcome in api.results(deployment, batch):
                if outcome.custom_id.startswith(f"{handed.handed_id}-"):
                    return [batch_id]
                break
        return [""] if open_ones else []

    async def _look(self, handed: ProviderBatchRecord, deployment: Deployment) -> None:
        api = self._apis[deployment.batch_api or ""]
        found = await api.look(deployment, handed.upstream_id)
        batch = await self._batches.get(handed.batch_id)
        late_s = (self._batches.now_us() - handed.give_up_us) / 1_000_000
        if found.outcome:
            await self._collect(handed, batch, deployment, found)
            return
        if late_s > -CANCEL_S or batch.status != "in_progress":
            await api.cancel(deployment, handed.upstream_id)
        await self._wait_or_give_up(handed)

    async def _forget(self, handed: ProviderBatchRecord, deployment: Deployment) -> None:
        """Ask the provider to delete its part of a batch that has ended: prompts and answers belong to callers."""
        api = self._apis[deployment.batch_api or ""]
        upstream_id = handed.upstream_id
        if not upstream_id:
            # Looking for it removes what was uploaded for no batch.
            made = await api.find(deployment, handed.handed_id, handed.created_us / 1_000_000, handed.lines)
            upstream_id = made[0] if made else ""
        try:
            found = await api.look(deployment, upstream_id) if upstream_id else None
        except UpstreamError as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise
            found = None
        if found is not None and not found.outcome:
            await api.cancel(deployment, upstream_id)
            await self._wait_or_give_up(handed)
            return
        if found is not None:
            await api.forget(deployment, found)
        await self._store.forgotten(handed.handed_id)

    async def _wait_to_forget(self, handed: ProviderBatchRecord) -> None:
        """Ask for the deletion again later, ever more seldom; after a week in which it was asked an operator has to see to it."""
        age_s = self._age_s(handed)
        # By when this look was due: a gateway that was away for a week has asked once.
        if handed.look_us - handed.created_us > _FORGET_S * 1_000_000:
            _log.error(
                "batch: %s has not deleted batch %s and its files for a week; delete them there by hand",
                handed.deployment_id,
                handed.upstream_id or handed.handed_id,
            )
            await self._store.forgotten(handed.handed_id)
            return
        later_us = int(age_s * _FORGET_LATER * 1_000_000)
        await self._store.look_later(handed.handed_id, max(self._next_look_us(), self._batches.now_us() + later_us))

    async def _wait_or_give_up(self, handed: ProviderBatchRecord) -> None:
        """Look again later. Lines that are needed take other options meanwhile, and the calls of a lost batch are
        booked.
        """
        if handed.state == "forgetting":
            await self._wait_to_forget(handed)
            return
        if self._batches.now_us() >= handed.give_up_us and handed.lines_left:
            self._count("returned", await self._store.take_back(handed))
        if self._age_s(handed) > _LOST_S:
            await self._end(handed, "lost", failed=True, unknown=handed.lines)
            return
        await self._store.look_later(handed.handed_id, self._next_look_us())

    async def _collect(
        self, handed: ProviderBatchRecord, batch: Batch, deployment: Deployment, found: HandedBatch
    ) -> None:
        api = self._apis[deployment.batch_api or ""]
        reserves = await self._store.open_reserves(handed.handed_id)
        caller = await self._caller_of(batch.key_id)
        read = 0
        some: list[CallOutcome] = []
        async for outcome in api.results(deployment, found):
            if outcome.status == _OK:
                read += 1
                some.append(outcome)
            if len(some) >= _RESULTS_AT_A_TIME:
                await self._write(handed, batch, caller, reserves, some)
                some = []
        await self._write(handed, batch, caller, reserves, some)
        ended: str = found.outcome
        if found.outcome in {"cancelled", "expired"} and batch.status == "in_progress":
            ended = "late"
        elif found.outcome == "failed":
            self._refused_until[deployment.deployment_id] = self._clock() + _REFUSED_S
        # Answers that the provider counts but did not deliver were paid for as well.
        await self._end(handed, ended, failed=True, unknown=max(0, found.answered - read))

    async def _write(
        self,
        handed: ProviderBatchRecord,
        batch: Batch,
        caller: Caller | None,
        reserves: Mapping[str, Entry],
        some: Sequence[CallOutcome],
    ) -> None:
        """Write some answers with their bookings. An unreadable answer is booked at the most that it may cost."""
        numbers = {each.custom_id: parsed for each in some if (parsed := number_of(handed.handed_id, each.custom_id))}
        lines = await self._store.lines_of(handed.batch_id, {number for number, _ in numbers.values()})
        results: list[LineResult] = []
        entries: list[Entry] = []
        estimated = 0
        for each in some:
            number, generation = numbers.get(each.custom_id, (0, 0))
            line = lines.get(number)
            if line is None:
                continue
            line = msgspec.structs.replace(line, generation=generation)
            reserve = reserves.get(request_id(batch, line))
            if reserve is None:
                # It is booked already.
                continue
            result, entry = await self._result(batch, caller, line, reserve, each)
            entries.append(entry)
            if result is None:
                estimated += 1
            else:
                results.append(result)
        collected = await self._store.collect(handed, results, entries, estimated)
        self._count("answered", collected.answered)
        self._count("unneeded", collected.unneeded)
        self._count("estimated", estimated)
        await self._store.hold(handed.handed_id, self._holder, self._lease_us)

    async def _result(
        self, batch: Batch, caller: Caller | None, line: ClaimedLine, reserve: Entry, outcome: CallOutcome
    ) -> tuple[LineResult | None, Entry]:
        await asyncio.sleep(0)
        if caller is None:
            return None, orphan_settlement(reserve)
        try:
            asked = await self._asked(batch, caller, line, reserve.request_id)
            answered, entry = await self._line.answered(asked, reserve, outcome.body)
        except GuardUnavailable:
            raise
        except (Refused, UpstreamError) as error:
            _log.warning("batch %s: a provider's answer is of no use: %s", batch.batch_id, type(error).__name__)
            return None, orphan_settlement(reserve)
        return result_of(line, reserve.request_id, answered), entry

    async def _asked(self, batch: Batch, caller: Caller, line: ClaimedLine, named: str) -> LineRequest:
        """Return the line as a request to the pipeline. Raises Refused."""
        return LineRequest(
            request_id=named,
            caller=caller,
            endpoint=batch.endpoint,
            body=await self._body_of(batch, line),
            priority=batch.priority,
        )

    async def _end(
        self, handed: ProviderBatchRecord, outcome: str, *, failed: bool, unknown: int = 0, leaves: bool | None = None
    ) -> None:
        """Close a batch. Of the calls without a report, `unknown` may have been paid for, and the others were not
        made. With `leaves` a part of it is at the provider; None: where it was made there.
        """
        reserves = list((await self._store.open_reserves(handed.handed_id)).values())
        estimated = min(unknown, len(reserves))
        entries = [orphan_settlement(each) for each in reserves[:estimated]]
        entries += [void_of(each) for each in reserves[estimated:]]
        leaves = handed.upstream_id != "" if leaves is None else leaves
        released = await self._store.end(handed, outcome, entries, estimated=estimated, failed=failed, leaves=leaves)
        await self._money.free(handed.handed_id)
        self._count("returned", released)
        self._count("estimated", estimated)
        if estimated:
            _log.error(
                "batch: %d calls at %s may have been charged for without an answer; they are booked at the most that they may "
                "have cost",
                estimated,
                handed.deployment_id,
            )

    def _age_s(self, handed: ProviderBatchRecord) -> float:
        return (self._batches.now_us() - handed.created_us) / 1_000_000

    def _next_look_us(self) -> int:
        return self._batches.now_us() + int(self._section.provider_poll_s * 1_000_000)


def custom_id(handed_id: str, line: ClaimedLine) -> str:
    """Return the name of a line at a provider: letters, digits, `_` and `-`, at most 64 of them."""
    return f"{handed_id}-{line.number}-{line.generation}"


def number_of(handed_id: str, name: str) -> tuple[int, int] | None:
    """Return the line's number and generation in such a name; None for one that is not ours."""
    prefix, _, rest = name.partition("-")
    number, _, generation = rest.partition("-")
    if prefix != handed_id or not number.isdecimal() or not generation.isdecimal():
        return None
    return int(number), int(generation)
