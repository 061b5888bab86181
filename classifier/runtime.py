"""Opening of ONNX graphs with onnxruntime."""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from classifier.manifest import ArtifactError, ArtifactMalformed

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

_SEVEREST_ONLY: Final = 4


class RuntimeMissing(ArtifactError):
    """onnxruntime is not installed, or is broken."""


def open_session(model: bytes, inputs: Mapping[str, str]) -> "InferenceSession":
    """A single-threaded session for a graph that takes exactly `inputs` (name to type).

    Raises RuntimeMissing or ArtifactMalformed.
    """
    # onnxruntime reads this when it loads; its telemetry would leave a file in the folder for temporary ones.
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    try:
        import onnxruntime as ort  # noqa: PLC0415 - Without it the rule serves.
    except Exception as error:  # A library that is broken fails in its own way.
        raise RuntimeMissing(f"onnxruntime does not load: {type(error).__name__}") from error
    options = ort.SessionOptions()
    # The graph takes microseconds, and the other cores are for the requests.
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.log_severity_level = _SEVEREST_ONLY
    try:
        session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's errors share no base class.
        raise ArtifactMalformed(f"the graph does not load: {type(error).__name__}") from error
    if {one.name: one.type for one in session.get_inputs()} != dict(inputs):
        raise ArtifactMalformed("the graph takes other inputs than this code gives it")
    return session


Run = Callable[[Sequence[str], Mapping[str, NDArray[Any]], None], Sequence[NDArray[np.float32]]]


def quick_run(session: "InferenceSession") -> Run:
    """The session's `run`: outputs' names, inputs by name, and no options.

    Where the library has it, the one behind its Python class, which looks the inputs' names over anew for every call, six
    microseconds for what `open_session` has compared once, and which keeps the model's file in memory.
    """
    run: Run = getattr(session, "_sess", session).run
    return run
