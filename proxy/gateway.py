"""The parts of a running gateway, as routes find them in the request's state."""

from typing import Annotated, NamedTuple, TypedDict

from fastapi import Depends, Request
from sqlalchemy.ext.asyncio import AsyncEngine

from accounts.caller import Caller
from classifier.heuristic import HeuristicClassifier
from classifier.learning.store import LearningStore
from classifier.onnx_classifier import OnnxClassifier
from cost.ledger import Ledger
from cost.store import LedgerStore
from proxy.line import Line
from proxy.observers.learning import LearningLog
from proxy.observers.metrics import Metrics
from proxy.request import read_headers


class Gateway(NamedTuple):
    """Wired once per process by `proxy.app`; nothing here is replaced while it runs."""

    line: Line
    ledger: Ledger
    usage: LedgerStore
    metrics: Metrics
    learning: LearningStore
    learning_log: LearningLog
    classifier: OnnxClassifier | HeuristicClassifier
    database: AsyncEngine
    metrics_token: str | None


class State(TypedDict):
    """The lifespan's state, typed."""

    gateway: Gateway


def gateway_of(request: Request) -> Gateway:
    """The gateway that serves this request."""
    found: Gateway = request.state.gateway
    return found


async def caller_of(request: Request) -> Caller:
    """The owner of the request's key; raises what `Line.authenticate` raises."""
    return await gateway_of(request).line.authenticate(read_headers(request.scope["headers"]))


AuthenticatedCaller = Annotated[Caller, Depends(caller_of)]
