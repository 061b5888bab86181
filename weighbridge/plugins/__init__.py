"""The five kinds of plug-ins, the facts that they are given and what they return.

    from weighbridge.plugins import Guard, Text, RequestFacts, Verdict

A plug-in is a class that says which `protocol` it was written for and has its kind's method. It is loaded only where the
gateway's configuration names it. How: docs/plugins.md.
"""

from weighbridge.plugins.facts import (
    KINDS,
    Action,
    Call,
    Candidate,
    Direction,
    Identity,
    Kind,
    Outcome,
    Outgoing,
    RequestFacts,
    Score,
    Span,
    Text,
    Verdict,
)
from weighbridge.plugins.protocols import PROTOCOLS, Authenticator, Dialect, Exporter, Guard, ReplyReader, Scorer

__all__ = [
    "KINDS",
    "PROTOCOLS",
    "Action",
    "Authenticator",
    "Call",
    "Candidate",
    "Dialect",
    "Direction",
    "Exporter",
    "Guard",
    "Identity",
    "Kind",
    "Outcome",
    "Outgoing",
    "ReplyReader",
    "RequestFacts",
    "Score",
    "Scorer",
    "Span",
    "Text",
    "Verdict",
]
