"""The optional packages that a configuration needs: which are not installed here, and what installs them."""

import importlib.util
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

import msgspec

from cost.ledger.archive_config import S3
from gateway.configuration.file import Document, KeyPath, Problem
from gateway.configuration.gateway_config import GatewayConfig
from providers.target import ANTHROPIC


class Extra(msgspec.Struct, frozen=True):
    """One of the project's extras, by the package that shows whether it is installed, and where a configuration asks for it."""

    name: str
    package: str
    asked_for: Callable[[GatewayConfig], KeyPath | None]


def _litellm(config: GatewayConfig) -> KeyPath | None:
    for index, model in enumerate(config.providers.models):
        for place, deployment in enumerate(model.deployments):
            is_direct = (deployment.upstream_model or "").startswith(ANTHROPIC) and not deployment.options
            if deployment.kind == "litellm" and not is_direct:
                return ("providers", "models", index, "deployments", place, "kind")
    return None


def _object_store(config: GatewayConfig) -> KeyPath | None:
    return ("batch", "s3") if config.batch.enabled and config.batch.s3 is not None else None


def _sink(config: GatewayConfig, kind: str) -> KeyPath | None:
    return next(
        (("events", "sinks", index) for index, sink in enumerate(config.events.sinks) if sink.kind == kind), None
    )


def _archive(config: GatewayConfig) -> KeyPath | None:
    return None if config.cost.archive is None else ("cost", "archive")


def _archive_store(config: GatewayConfig) -> KeyPath | None:
    archive = config.cost.archive
    return ("cost", "archive", "to") if archive is not None and archive.to.startswith(S3) else None


def _sign_in(config: GatewayConfig) -> KeyPath | None:
    return ("sign_in", "providers") if config.sign_in.providers else None


def _traces(config: GatewayConfig) -> KeyPath | None:
    return ("telemetry", "otlp_endpoint") if config.telemetry.otlp_endpoint else None


EXTRAS: Final = (
    Extra("litellm", "litellm", _litellm),
    Extra("s3", "obstore", _object_store),
    Extra("s3", "obstore", partial(_sink, kind="s3")),
    Extra("s3", "pyarrow", partial(_sink, kind="s3")),
    Extra("s3", "pyarrow", _archive),
    Extra("s3", "obstore", _archive_store),
    Extra("kafka", "aiokafka", partial(_sink, kind="kafka")),
    Extra("nats", "nats", partial(_sink, kind="nats")),
    Extra("sso", "authlib", _sign_in),
    Extra("otel", "opentelemetry.sdk", _traces),
)


def extra_problems(config: GatewayConfig, document: Document) -> Iterator[Problem]:
    """Yield a problem, with its line, for each extra that the configuration needs and that is not installed."""
    for extra in EXTRAS:
        where = extra.asked_for(config)
        if where is not None and not _is_installed(extra.package):
            told = f"needs {extra.package}, which is not installed: pip install 'weighbridge[{extra.name}]'"
            yield document.problem(where, told)


def _is_installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:
        return False
