"""Share in a test process what each of its gateways and clients would make alike.

A gateway on the trained model reads it and compares two ways to weigh prompts, twice in a start, once a plane; an SDK's client reads
the certificates of this machine; and FastAPI reads the signatures of all routes for each app. Those were a quarter of the processor time
of tests over sockets. None of it has a state that a test could leave behind.
"""

import functools
from pathlib import Path
from typing import Any, Final

import fastapi.routing
import httpx._transports.default
import pytest

import classifier
from classifier import onnx_classifier
from classifier.manifest import Artifact

_SHIPPED: Final = Path(classifier.__file__).parent / "artifacts"


def pytest_configure(config: pytest.Config) -> None:
    """Before anything is made."""
    share_the_shipped_model()
    _share_certificates()
    _share_signatures()


def share_the_shipped_model() -> None:
    """Read the shipped artifact and its tables once, and try once whether the compiled loop gives numpy's numbers. Any other
    artifact is read anew each time.
    """
    patched: Any = onnx_classifier
    read_artifact, read_tables, look_up_in = patched.read_artifact, patched.read_tables, patched.look_up_in
    shipped: list[Artifact] = []

    @functools.cache
    def shipped_tables(loads: int) -> Any:
        return read_tables(shipped[0].tables, loads)

    @functools.cache
    def shipped_look_up(loads: int) -> Any:
        return look_up_in(shipped_tables(loads))

    def artifact(folder: Path) -> Any:
        if folder != _SHIPPED:
            return read_artifact(folder)
        if not shipped:
            shipped.append(read_artifact(folder))
        return shipped[0]

    def tables(content: bytes, loads: int) -> Any:
        return shipped_tables(loads) if shipped and content is shipped[0].tables else read_tables(content, loads)

    def look_up(of: Any) -> Any:
        known = shipped and of is shipped_tables(shipped[0].manifest.loads)
        return shipped_look_up(of.loads) if known else look_up_in(of)

    patched.read_artifact, patched.read_tables, patched.look_up_in = artifact, tables, look_up


def _share_certificates() -> None:
    """Clients that say nothing of certificates have one context."""
    patched: Any = httpx._transports.default
    make = patched.create_ssl_context
    usual = functools.cache(lambda trust_env: make(verify=True, cert=None, trust_env=trust_env))

    def context(verify: Any = True, cert: Any = None, trust_env: bool = True) -> Any:
        if verify is True and cert is None:
            return usual(trust_env)
        return make(verify=verify, cert=cert, trust_env=trust_env)

    patched.create_ssl_context = context


def _share_signatures() -> None:
    """Apps of the same routers have the same parameters."""
    patched: Any = fastapi.routing
    build = patched._build_dependant_with_parameterless_dependencies
    usual = functools.lru_cache(2_000)(lambda path, call: build(path=path, call=call, dependencies=()))

    def built(*, path: str, call: Any, dependencies: Any) -> Any:
        return build(path=path, call=call, dependencies=dependencies) if dependencies else usual(path, call)

    patched._build_dependant_with_parameterless_dependencies = built
