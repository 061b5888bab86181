"""CloudEvents to a topic of Kafka, in structured mode: a message each, keyed by its request. aiokafka is the extra `kafka`."""

import asyncio
import contextlib
import importlib
import logging
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any, Final

from cost.events.sink import Batch, BatchRefused, SinkFailed

_HEADERS: Final = [("content-type", b"application/cloudevents+json; charset=UTF-8")]
_STOP_S: Final = 2.0
_reasons: Final[ContextVar[list[str]]] = ContextVar("reasons")
_LINGER_MS: Final = 5


class _Reasons(logging.Handler):
    """Keeps what kind of failures aiokafka's lines are about, and drops the lines: several a second, with addresses, while brokers are away.
    It raises the same for every broker that it cannot use, whether that is away or refuses the password.
    """

    def emit(self, record: logging.LogRecord) -> None:
        """Take a line."""
        given = record.args if isinstance(record.args, tuple) else ()
        _reasons.get([]).extend(type(each).__name__ for each in given if isinstance(each, BaseException))


class KafkaSink:
    """One topic. All copies have to acknowledge (`acks=all`), and the producer numbers its messages, so a retry of its own writes none twice."""

    def __init__(
        self, topic: str, settings: Mapping[str, Any], renewed: Callable[[], Mapping[str, Any]] = dict
    ) -> None:
        """Take `settings` of aiokafka's own, such as `bootstrap_servers`; `renewed` are more of them, asked for after each failure, as
        passwords and certificates are renewed in their files. Raises ImportError without aiokafka.
        """
        self._kafka = importlib.import_module("aiokafka")
        self._errors = importlib.import_module("aiokafka.errors")
        self._too_large = (
            self._errors.MessageSizeTooLargeError,
            self._errors.RecordListTooLargeError,
            self._errors.InvalidMessageError,
        )
        self._topic = topic
        self._settings = {"acks": "all", "enable_idempotence": True, "linger_ms": _LINGER_MS, **settings}
        self._renewed = renewed
        self._producer: Any = None
        log = logging.getLogger("aiokafka")
        log.propagate = False
        if not any(isinstance(each, _Reasons) for each in log.handlers):
            log.addHandler(_Reasons())

    async def send(self, batch: Batch) -> None:
        """Send a batch and wait for the brokers. Raises SinkFailed, and BatchRefused where a message is too large."""
        reasons: list[str] = []
        _reasons.set(reasons)
        try:
            await self._send(batch)
        except BaseException as failure:
            # A producer that failed may wait for ever (aiokafka 1101): the next batch has a new one.
            await self.aclose()
            if not isinstance(failure, self._errors.KafkaError | OSError):
                raise
            if isinstance(failure, self._too_large):
                raise BatchRefused(type(failure).__name__) from None
            raise SinkFailed(", ".join(dict.fromkeys([type(failure).__name__, *reasons]))) from None

    async def aclose(self) -> None:
        """Stop the producer; one that cannot stop is left."""
        producer, self._producer = self._producer, None
        if producer is None:
            return
        producer._closed = True  # noqa: SLF001 - for its own destructor
        # Its `stop` first waits, for ever where the brokers are away, for what was not acknowledged. That goes again with the next one,
        # so only the parts are stopped.
        for part in (producer._sender, producer.client):  # noqa: SLF001
            with contextlib.suppress(TimeoutError, self._errors.KafkaError, OSError):
                async with asyncio.timeout(_STOP_S):
                    await part.close()

    async def _send(self, batch: Batch) -> None:
        if self._producer is None:
            producer = self._kafka.AIOKafkaProducer(**self._settings, **self._renewed())
            self._producer = producer
            await producer.start()
        # The producer's own queue is waited for, and then each message: `send` alone says nothing of it.
        waiting = [
            await self._producer.send(self._topic, encoded, key=event.entry.request_id.encode(), headers=list(_HEADERS))
            for event, encoded in zip(batch.events, batch.encoded, strict=True)
        ]
        for failure in await asyncio.gather(*waiting, return_exceptions=True):
            if isinstance(failure, BaseException):
                raise failure
