"""A failure is told as far as it can still be told, and the request ends by it unless it was cut before."""

import pytest

from proxy.context import EndedBy
from proxy.errors import BadRequest, Draining
from proxy.relay.error_response import tell_failure
from tests.proxy.contexts import a_context
from tests.proxy.exchanges import HeardExchange


async def test_before_the_first_byte_it_is_an_error_reply() -> None:
    """With the status of the error and all that the reply says anyway."""
    sent = HeardExchange()
    context = a_context(sent)
    await tell_failure(context, BadRequest("no", param="n", code="odd"))
    start, body = sent.messages
    assert (start["status"], context.ended_by, context.error_code) == (400, "failed", "odd")
    assert (b"x-request-id", b"req_1") in start["headers"]
    assert b'"param":"n"' in body["body"].replace(b": ", b":")


@pytest.mark.parametrize(("ended_by", "told"), [("cut_off", True), (None, False)])
async def test_in_a_stream_only_a_process_that_stops_says_so(ended_by: EndedBy | None, told: bool) -> None:
    """Anything else that the relay did not tell is no end that a caller may take for one: the connection is cut."""
    sent = HeardExchange()
    context = a_context(sent)
    context.ended_by = ended_by
    context.reply.begin_events()
    await tell_failure(context, Draining("stopping"))
    assert (b"draining" in sent.messages[-1].get("body", b"")) is told
    assert context.reply.aborted is not told
    assert context.ended_by == (ended_by or "failed")
