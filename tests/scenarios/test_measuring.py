"""Measuring a target on a real gateway: what is asked, scored, booked, never exceeded, gone on with, and put in use."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pydantic import SecretStr

from accounts.audit.entry import Actor
from accounts.audit.log import AuditLog, Scope
from classifier.measuring.questions import Question, calibration_set
from classifier.measuring.result import Result
from classifier.measuring.store import Measurement, MeasurementStore, Order
from classifier.onnx_classifier import OnnxClassifier
from dashboards.operations.measurement_change import (
    accept_measurement,
    order_measurement,
    read_result,
    roll_back_tuning,
    stop_measurement,
)
from gateway.configuration.environment import Environment
from gateway.database import make_engine
from gateway.wiring import measuring
from proxy.errors import BadRequest
from tests.examinee import OUTPUT_TOKENS, PROMPT_TOKENS, Examinee, Manner, examinee, like
from tests.running_gateway import PEPPER, TRAINED, Running, gateway_at, model, running_gateway

TARGET = "fresh"
OPERATOR = "default"
ACTOR = Actor(kind="person", actor_id="p_1", name="Ada", organisation_id=OPERATOR)
EACH_NANOUSD = PROMPT_TOKENS * 2_500 + OUTPUT_TOKENS * 10_000
"""What an answer costs by the test's prices."""
OUTLINE = Order(target_id=TARGET, questions=60, max_tokens=100)


@contextlib.asynccontextmanager
async def house(folder: Path, student: Examinee, *, trained: bool = False, **fields: Any) -> AsyncIterator[Running]:
    """A gateway with one target, which is the student."""
    deployments = [{"kind": "vllm", "base_url": student.url}]
    sections: dict[str, Any] = {"classifier": TRAINED} if trained else {}
    async with running_gateway(folder, [model(TARGET, deployments, **fields)], **sections) as running:
        yield running


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop looks more often than anybody needs it to."""
    monkeypatch.setattr(measuring, "POLL_S", 0.02)


async def ordered(running: Running, order: Order = OUTLINE, *, anew: bool = False) -> Measurement:
    found, _ = await order_measurement(AuditLog(running.engine), ACTOR, OPERATOR, order, anew=anew)
    return found


async def ended(running: Running, found: Measurement) -> Measurement:
    """Once no process works on it any more."""
    store = MeasurementStore(running.engine)
    while True:
        now = await store.find(found.measurement_id)
        if now.state != "running" and not now.touched_us:
            return now
        await asyncio.sleep(0.02)


def result_of(found: Measurement) -> Result:
    result = read_result(found)
    assert result is not None
    return result


def right(_question: Question) -> Manner:
    return "right"


async def test_a_known_model_is_placed_where_it_stands(tmp_path: Path) -> None:
    """Whoever answers as a known model did comes out beside it, and the row decides from then on."""
    async with examinee(like("llama-3.1-70b-instruct")) as student, house(tmp_path, student, trained=True) as running:
        done = await ended(running, await ordered(running, msgspec.structs.replace(OUTLINE, questions=200)))
        assert (done.state, done.reason) == ("finished", "")
        result = result_of(done)
        assert (result.scored, result.failed, result.unparsed) == (200, 0, 0)
        assert result.mean is not None
        known = running.live.classifier
        assert isinstance(known, OnnxClassifier)
        stands = {each.name: each.mean for each in result.known}
        assert known.artifact == result.artifact
        assert result.mean.low < result.mean.value < result.mean.high
        assert result.mean.high - result.mean.low < 0.2
        assert stands
        assert min(stands.values()) < result.mean.value < max(stands.values())
        assert result.before is None
        assert {each.source for each in result.sources} >= {"mmlu_pro", "tool_calls", "zeroeval_crux"}
        assert result.token_ratio is not None
        assert result.ttft_p50_s is not None
        assert TARGET not in known.measured
        version = await accept_measurement(AuditLog(running.engine), ACTOR, OPERATOR, done.measurement_id)
        await running.refresh_tunings()
        assert TARGET in known.measured
        with pytest.raises(BadRequest, match="accepted already"):
            await accept_measurement(AuditLog(running.engine), ACTOR, OPERATOR, done.measurement_id)
        assert await roll_back_tuning(AuditLog(running.engine), ACTOR, OPERATOR) == 0
        await running.refresh_tunings()
        assert TARGET not in known.measured
        told = [(each.action, each.object_kind, each.actor_name) for each in await entries(running)]
        assert told[-4:] == [
            ("measurement.ordered", "team", "Ada"),
            ("measurement.ordered", "measurement", "Ada"),
            ("tuning.accepted", "tuning", "Ada"),
            ("tuning.rolled_back", "tuning", "Ada"),
        ]
        assert version == 1


async def entries(running: Running) -> list[Any]:
    found = await AuditLog(running.engine).page(Scope(organisation_id=OPERATOR))
    return sorted(found, key=lambda each: each.number)


async def test_every_answer_is_booked_to_a_team_of_its_own(tmp_path: Path) -> None:
    """The ledger has each question once, without a baseline, and the sum is what the measurement says."""
    async with examinee(right) as student, house(tmp_path, student) as running:
        done = await ended(running, await ordered(running))
        rows = await running.rows("entry = 'settle'")
        assert len(rows) == len(student.asked) == 60
        assert {(row["team_id"], row["alias"], row["baseline_nanousd"]) for row in rows} == {
            ("calibration", "calibration", None)
        }
        tally = await MeasurementStore(running.engine).tally(done.measurement_id)
        assert tally.spent_nanousd == sum(row["cost_nanousd"] for row in rows) == 60 * EACH_NANOUSD
        assert all(body["stream"] and body["max_tokens"] == 100 for body in student.bodies)
        assert {each.question_id for each in student.asked} == {
            each.question_id for each in calibration_set().first(60)
        }


@pytest.mark.parametrize("at_once", [1, 8])
async def test_a_budget_is_never_exceeded_and_more_money_goes_on(tmp_path: Path, at_once: int) -> None:
    """It stops before a question that might not fit; ordered again with more, it asks the others alone."""
    async with examinee(right) as student, house(tmp_path, student) as running:
        budget = 20 * EACH_NANOUSD
        small = msgspec.structs.replace(OUTLINE, budget_nanousd=budget, at_once=at_once)
        first = await ended(running, await ordered(running, small))
        assert first.state == "stopped"
        assert "the budget does not hold the next question" in first.reason
        spent = sum(row["cost_nanousd"] for row in await running.rows("entry = 'settle'"))
        assert budget / 2 < spent <= budget
        assert 5 < len(student.asked) < 20
        second = await ended(running, await ordered(running))
        assert second.measurement_id == first.measurement_id
        assert len(student.asked) == len({each.question_id for each in student.asked}) == 60


async def test_a_stopped_one_goes_on_where_it_was(tmp_path: Path) -> None:
    """Whatever was answered is not asked again, also after the process has gone."""
    async with examinee(right) as student, house(tmp_path, student) as running:
        student.hangs_after = 10
        found = await ordered(running)
        await student.hangs.wait()
        with pytest.raises(BadRequest, match="being measured already"):
            await ordered(running)
        assert await stop_measurement(AuditLog(running.engine), ACTOR, OPERATOR, found.measurement_id)
        stopped = await ended(running, found)
        assert (stopped.state, stopped.reason) == ("stopped", "stopped by Ada")
        student.goes_on.set()
        assert len(student.asked) <= 14
        done = await ended(running, await ordered(running))
        tally = await MeasurementStore(running.engine).tally(done.measurement_id)
        assert (done.measurement_id, tally.scored) == (found.measurement_id, 60)
        # Only what was under way is asked again.
        assert len(student.asked) <= 60 + OUTLINE.at_once


async def test_a_new_process_goes_on_where_the_last_one_ended(tmp_path: Path) -> None:
    """A restart in the middle of it loses no answer, and needs nobody to order it again."""
    async with examinee(right) as student:
        student.hangs_after = 10
        async with house(tmp_path, student) as running:
            found = await ordered(running)
            await student.hangs.wait()
            environment = Environment(data_dir=tmp_path, pepper=SecretStr(PEPPER))
        student.goes_on.set()
        engine = make_engine(f"sqlite:///{tmp_path / 'weighbridge.sqlite'}")
        async with gateway_at(running.config_path, environment, engine, running.key) as again:
            done = await ended(again, found)
            assert (await MeasurementStore(engine).tally(done.measurement_id)).scored == 60
            assert len(student.asked) <= 60 + OUTLINE.at_once
        await engine.dispose()


async def test_odd_answers_and_refusals_count_as_wrong_and_are_shown(tmp_path: Path) -> None:
    """An answer that cannot be read is wrong, and the operator sees what was said instead."""
    numbers = {each.question_id: at for at, each in enumerate(calibration_set().questions)}

    def manners(question: Question) -> Manner:
        kinds: tuple[Manner, ...] = ("right", "right", "odd", "refuse", "wrong")
        return kinds[numbers[question.question_id] % 5]

    async with examinee(manners) as student, house(tmp_path, student, trained=True) as running:
        result = result_of(await ended(running, await ordered(running)))
        assert (result.scored, result.right, result.refused) == (60, 24, 12)
        # To say that no tool serves is right, however it is put.
        assert 10 <= result.unparsed <= 12
        assert {each.said.split()[0] for each in result.shown} == {"Well,", "I'm"}
        assert any("refused 12 of 60" in note for note in result.notes)
        assert any("had not the asked form" in note for note in result.notes)


async def test_a_target_that_rejects_is_told_so_at_once(tmp_path: Path) -> None:
    """Five refusals in a row end it, with the upstream's own word, and cost nothing."""
    async with examinee(lambda _: "reject") as student, house(tmp_path, student) as running:
        done = await ended(running, await ordered(running))
        assert done.state == "stopped"
        assert "fresh refuses the requests, " in done.reason
        assert "max_tokens is not supported" in done.reason
        # Each that is asked meanwhile is asked again by the newer name of the parameter.
        assert len(student.asked) < 25
        assert (await MeasurementStore(running.engine).tally(done.measurement_id)).spent_nanousd == 0


async def test_an_outage_ends_it_and_failed_questions_are_asked_again(tmp_path: Path) -> None:
    """What got no answer is not scored, and the same order asks it again."""
    manner: list[Manner] = ["break"]
    async with examinee(lambda _: manner[0]) as student, house(tmp_path, student) as running:
        broken = await ended(running, await ordered(running))
        assert broken.state == "stopped"
        assert "does not answer" in broken.reason
        manner[0] = "right"
        for deployment in running.parts.rules().catalog.targets[TARGET].deployments:
            running.control.live.breakers.cleared(deployment.deployment_id)
        done = await ended(running, await ordered(running))
        assert (await MeasurementStore(running.engine).tally(done.measurement_id)).scored == 60


@pytest.mark.parametrize(("questions", "manner", "why"), [(30, "wrong", "too few"), (60, "right", "one-sided")])
async def test_too_little_is_not_fitted(tmp_path: Path, questions: int, manner: Manner, why: str) -> None:
    """A row from a handful of answers, or from answers that are all alike, would be a guess: it says what to do."""
    async with examinee(lambda _: manner) as student, house(tmp_path, student, trained=True) as running:
        done = await ended(running, await ordered(running, msgspec.structs.replace(OUTLINE, questions=questions)))
        result = result_of(done)
        assert result.ability is None
        assert why in (result.too_few or "")
        with pytest.raises(BadRequest, match=why):
            await accept_measurement(AuditLog(running.engine), ACTOR, OPERATOR, done.measurement_id)


async def test_without_a_trained_model_answers_are_kept_and_nothing_is_fitted(tmp_path: Path) -> None:
    """The plain rule has no loads."""
    async with examinee(right) as student, house(tmp_path, student) as running:
        done = await ended(running, await ordered(running))
        assert done.state == "stopped"
        assert "no trained model is in use" in done.reason


async def test_a_target_without_tools_is_asked_none(tmp_path: Path) -> None:
    """It is asked as many questions of the other kinds."""
    async with examinee(right) as student, house(tmp_path, student, capabilities=["json"]) as running:
        await ended(running, await ordered(running))
        assert len(student.asked) == 60
        assert all(each.kind != "tool" for each in student.asked)
