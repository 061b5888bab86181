"""Tool loops: what counts as a step, as an error and as struggle, and that nothing found is ever taken back."""

import itertools
import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from providers.wire import Message
from proxy.parse.chat_request import turn_start
from proxy.plan.tool_loop import NO_LOOP, READ_STEPS, LoopRules, ToolLoop, looks_like_error, read_loop

USER: Mapping[str, Any] = {"role": "user", "content": "mend the test"}
FAILED = "Error: no such file"


def step(name: str, result: Any, number: int = 0, **arguments: Any) -> list[dict[str, Any]]:
    """One answer with one call, and its result, as agents send them."""
    call_id = f"call_{number}"
    call = {"id": call_id, "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
    return [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": call_id, "content": result},
    ]


def typed(messages: Sequence[Mapping[str, Any]]) -> list[Message]:
    return msgspec.json.decode(msgspec.json.encode(messages), type=list[Message])


def read(*steps: Sequence[Mapping[str, Any]], rules: LoopRules | None = None) -> ToolLoop:
    return read_loop(typed([USER, *(message for each in steps for message in each)]), rules or LoopRules())


def test_a_conversation_without_tools_has_no_loop() -> None:
    """Nothing follows the last user message, and nobody called anything before it."""
    assert read_loop(typed([USER, {"role": "assistant", "content": "done"}, USER]), LoopRules()) is NO_LOOP
    assert read_loop(typed([{"role": "system", "content": "x"}]), LoopRules()) is NO_LOOP


def test_a_loop_that_gets_on_is_counted_and_left_alone() -> None:
    """Mending and testing in turn is progress as long as the result changes, even though each test fails."""
    work = [
        each
        for number in range(8)
        for each in (step("edit", "ok", line=number), step("test", f"exit code 1: {9 - number} failed"))
    ]
    assert read(*work) == ToolLoop(16, 0, None)


def test_the_same_call_with_the_same_result_is_struggle() -> None:
    """At the third time, whatever the order of keys and the spacing of its arguments."""
    one, two = step("read", "same old", a=1, b=2), step("read", "same old", b=2, a=1)
    two[0]["tool_calls"][0]["function"]["arguments"] = '{ "b":2,\n"a":1 }'
    assert read(one, two).raises == 0
    assert read(one, two, one) == ToolLoop(3, 1, "repeated-call")


def test_the_same_call_that_fails_in_new_words_is_struggle_until_something_works() -> None:
    """A time-stamp in an error does not make it news; a success in between does."""
    tries = [step("deploy", f"Error: refused at 12:0{number}") for number in range(3)]
    assert read(*tries).struggle == "repeated-call"
    assert read(tries[0], step("edit", "ok"), tries[1], step("edit", "ok", x=1), tries[2]).struggle is None


def test_errors_in_a_row_are_struggle() -> None:
    """Of different calls; a step counts once, and only when each of its calls failed."""
    fails = [step("read", FAILED + str(number), path=number) for number in range(3)]
    assert read(*fails).struggle == "repeated-errors"
    assert read(fails[0], fails[1], step("read", "text"), fails[2]).struggle is None
    both = [*step("read", FAILED, 1, path=1), *step("read", FAILED, 2, path=2)]
    parallel = [{**both[0], "tool_calls": both[0]["tool_calls"] + both[2]["tool_calls"]}, both[1], both[3]]
    assert read(parallel).struggle is None
    half = [parallel[0], parallel[1], {**both[3], "content": "text"}]
    assert read(half, half).struggle is None


def test_the_same_result_of_different_calls_is_no_progress_unless_it_acknowledges() -> None:
    """Four empty searches tell something, four times "ok" does not."""
    for result, told in (("[]", "no-progress"), ("the page " * 20, "no-progress"), ("ok", None), ("", None)):
        assert read(*(step("search", result, q=number) for number in range(4))).struggle == told


def test_many_steps_among_few_calls_are_no_progress() -> None:
    """Up and down a list of pages whose text changes a little; as many steps of new calls are work."""
    to_and_fro = [step("scroll", f"page at {number}", to=number % 3) for number in range(31)]
    assert read(*to_and_fro).struggle == "no-progress"
    assert read(*(step("scroll", f"page at {number}", to=number) for number in range(60))).raises == 0


def test_each_episode_needs_new_evidence_and_their_number_is_bounded() -> None:
    """Three errors are one raise, six are two, and a hundred are no more than that."""
    fails = [step("read", FAILED, path=number) for number in range(100)]
    assert [read(*fails[:count]).raises for count in (2, 3, 5, 6, 9, 100)] == [0, 1, 1, 2, 2, 2]
    assert read(*fails, rules=LoopRules(max_raises=0)) == ToolLoop(100, 0, None)


def test_the_next_turn_is_raised_too_and_the_one_after_is_not() -> None:
    """Struggle says something about the task, which the next message mostly belongs to."""
    fails = [message for number in range(3) for message in step("read", FAILED, path=number)]
    done = {"role": "assistant", "content": "I give up"}
    assert read(fails, [done, USER]) == ToolLoop(0, 1, "repeated-errors")
    assert read(fails, [done, USER, USER]).raises == 1
    assert read(fails, [done, USER], step("read", "text")) == ToolLoop(1, 1, "repeated-errors")
    assert read(fails, [done, USER], fails, fails, fails).raises == 2
    assert read(fails, [done, USER, done, USER]) is NO_LOOP


def test_results_find_their_calls_by_id() -> None:
    """Parallel calls may be answered in any order."""
    first, second = step("a", "text a", 1), step("b", FAILED, 2)
    calls = {**first[0], "tool_calls": first[0]["tool_calls"] + second[0]["tool_calls"]}
    swapped = [[calls, second[1], first[1]], [calls, first[1], second[1]]]
    assert read(swapped[0], swapped[1], swapped[0]).struggle == "repeated-call"


def test_the_old_function_calls_count_too() -> None:
    """One call without an id, answered by a message of the role `function`."""
    old: list[dict[str, Any]] = [
        {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}},
        {"role": "function", "name": "f", "content": FAILED},
    ]
    assert read(old, old, old) == ToolLoop(3, 1, "repeated-call")


@pytest.mark.parametrize(
    "result",
    [
        "Error: no such file",
        "error - not found",
        "TypeError: 'int' object is not callable",
        "Traceback (most recent call last):\n  File ...",
        "collected 3 items\n\nrequests.exceptions.ConnectionError: refused",
        "bash: foo: command not found",
        "$ make\nmake: *** [all] stopped\nexit code: 2",
        "Process exited with code 127",
        "HTTP/1.1 503 Service Unavailable",
        "HTTP 404: not here",
        "fatal: not a git repository",
        "<tool_use_error>File has not been read yet</tool_use_error>",
        '{"error": "quota"}',
        '{"is_error": true, "content": "x"}',
        '{"exit_code": 1, "stdout": ""}',
        '{"output": "x", "metadata": {"exit_code": 2}}',
        '{"status": 500}',
        '{"status": "failed"}',
        '{"success": false}',
    ],
)
def test_what_says_that_it_failed_is_an_error(result: str) -> None:
    """As tools and shells write it."""
    assert looks_like_error(result)


@pytest.mark.parametrize(
    "result",
    [
        "",
        "ok",
        "No errors found.",
        "exit code: 0",
        '{"error": null, "rows": 3}',
        '{"errors": []}',
        '{"exit_code": 0, "stdout": "Error: expected in a test"}',
        '{"status": "ok", "code": 17}',
        '{"status": 200}',
        "def handle(error: Error) -> None:\n    raise ValueError",
        "# Errors\n\nWhen `Error: x` is seen, restart.\nDone.",
        "port 4040 is open, 503 bytes",
        "{broken json with an error",
    ],
)
def test_what_only_speaks_of_errors_is_none(result: str) -> None:
    """A missed error costs what it did before; a false one costs a dearer target."""
    assert not looks_like_error(result)


_RESULTS = st.sampled_from(["ok", "text", "[]", FAILED, "x" * 200, '{"exit_code": 1}', None, [{"type": "text"}]])
_STEP = st.builds(step, st.sampled_from("ab"), _RESULTS, st.integers(0, 2), x=st.integers(0, 1))
_MESSAGE = st.one_of(_STEP, st.just([USER]), st.just([{"role": "assistant", "content": "well"}]))


@given(st.lists(_STEP, max_size=40), st.integers(0, 4))
def test_raises_never_sink_as_a_loop_grows(steps: list[list[dict[str, Any]]], most: int) -> None:
    """So the choice never falls back within a turn, whichever process reads it, and each step adds one raise at most."""
    rules = LoopRules(max_raises=most, same_call=2, errors=2, unchanged=2)
    raises = [read(*steps[:count], rules=rules).raises for count in range(len(steps) + 1)]
    assert all(0 <= after - before <= 1 for before, after in itertools.pairwise(raises))
    assert max(raises) <= most


@given(st.lists(_MESSAGE, max_size=20))
def test_any_order_of_messages_is_read(parts: list[list[dict[str, Any]]]) -> None:
    """Twice the same, and steps are those after the last user message."""
    messages = typed([message for part in parts for message in part])
    found = read_loop(messages, LoopRules())
    assert found == read_loop(messages, LoopRules())
    after = messages[turn_start(messages) :]
    assert found.steps == sum(1 for each in after if bytes(each.tool_calls))


@pytest.mark.parametrize(
    "calls", [b"null", b"[]", b"[1]", b'"x"', b'[{"function": null}]', b'[{"id": 7, "function": {"arguments": [1]}}]']
)
def test_odd_calls_are_read_without_failing(calls: bytes) -> None:
    """Whatever stands there goes upstream as it is, and is judged there."""
    raw = msgspec.Raw(calls)
    messages = [Message(role="user", content="x"), Message(role="assistant", tool_calls=raw), Message(role="tool")] * 2
    read_loop(messages, LoopRules())


def test_huge_loops_are_read_in_bounded_time() -> None:
    """Two thousand steps with a megabyte each cost no more than the part that is read."""
    huge = typed(step("read", "x" * 1_000_000, path="y" * 100_000))
    messages = [*typed([USER]), *(huge * 2_000)]
    before = time.process_time()
    found = read_loop(messages, LoopRules(same_call=10_000, unchanged=10_000, max_steps=10_000))
    assert found.steps == 2_000 > READ_STEPS
    assert time.process_time() - before < 2
