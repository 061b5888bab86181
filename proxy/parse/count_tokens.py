"""Counting stage: a prompt's tokens as counted by the target that would answer it, where it can count."""

from typing import Final

import msgspec

from providers.message_roles import suited
from providers.target import Deployment, Target
from providers.token_counts import Question, TokenCounter, asked_as_written, asked_of_vllm
from proxy.parse.parsed_request import ParsedRequest
from selfhosted.kv_events.sampling import tokenize_body

Header = tuple[bytes, bytes]
HEADER: Final = b"x-weighbridge-token-count"


class Counted(msgspec.Struct, frozen=True):
    """A prompt's tokens, and the name of their counter; an empty name for our estimate."""

    tokens: int
    target_id: str = ""

    @property
    def headers(self) -> tuple[Header, ...]:
        if not self.target_id:
            return ((HEADER, b"estimated"),)
        return ((HEADER, b"counted"), (b"x-weighbridge-target", self.target_id.encode()))


async def counted(
    counter: TokenCounter | None, parsed: ParsedRequest, target: Target | None, fleet: tuple[Deployment, ...], name: str
) -> Counted:
    """Ask the target's first deployment that may be called; return our estimate where there is none, or it does not
    say.
    """
    estimate = Counted(parsed.input_tokens)
    if counter is None or target is None or not fleet:
        return estimate
    question = question_for(parsed, target, fleet[0])
    tokens = None if question is None else await counter.count_tokens(fleet[0], question, name)
    return estimate if tokens is None else Counted(tokens, target.target_id)


def question_for(parsed: ParsedRequest, target: Target, deployment: Deployment) -> Question | None:
    """Return the call that counts; None for a target that does not count such a prompt."""
    if not deployment.quirks.counts_tokens:
        return asked_as_written(target, deployment, parsed.to_count)
    request = parsed.request
    fields = {**request.fields, **request.for_engines}
    if (messages := suited(fields["messages"], request.messages, deployment.quirks)) is not None:
        fields["messages"] = messages
    sent = msgspec.structs.replace(request, fields=fields)
    body = tokenize_body(deployment.upstream_model, sent)
    return None if body is None else asked_of_vllm(deployment, body)
