"""A line's request id, the meaning of its answer, and the time of its next try. Pure."""

from hashlib import blake2b

from proxy.batch.batch import Batch, ClaimedLine, LineResult
from proxy.batch.line_protocol import LineReply
from proxy.shared.retryable import Meaning, meaning, wait_of_s


def request_id(batch: Batch, line: ClaimedLine) -> str:
    """Return the id under which the ledger books one beginning of one line, and no other.

    It has the shape of every request id: the batch's milliseconds since 1970, then 64 bits that follow from batch, line
    and generation.
    """
    named = f"{batch.batch_id}:{line.number}:{line.generation}".encode()
    return f"req_{batch.created_us // 1_000:012x}{blake2b(named, digest_size=8).hexdigest()}"


def result_of(line: ClaimedLine, request_id: str, answered: LineReply) -> LineResult:
    """Return the reply as the line's result."""
    return LineResult(
        line=line,
        request_id=request_id,
        status=answered.status,
        body=answered.body,
        error_code=answered.code,
        input_tokens=answered.input_tokens,
        cached_tokens=answered.cached_tokens,
        output_tokens=answered.output_tokens,
        reasoning_tokens=answered.reasoning_tokens,
        cost_nanousd=answered.cost_nanousd,
        saved_nanousd=answered.saved_nanousd,
    )


def meaning_of(answered: LineReply, line: ClaimedLine, tries: int) -> Meaning:
    """Return the meaning of a reply for its line. A failure counts, and the last of `tries` is the line's answer."""
    return meaning(answered.status, answered.code, line.failures, tries)


def wait_s(answered: LineReply, line: ClaimedLine, jitter: float) -> float:
    """Return the seconds until the line is begun again: as long as the reply says, otherwise doubling with each
    failure. `jitter`, from 0 to 1, spreads lines that failed together.
    """
    return wait_of_s(answered.retry_after_s, line.failures, jitter)
