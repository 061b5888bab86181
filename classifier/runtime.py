"""Opening of ONNX graphs with onnxruntime."""

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from classifier.manifest import ArtifactError, ArtifactMalformed

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

_SEVEREST_ONLY: Final = 4
_ROW: Final = 2


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


def output_width(session: "InferenceSession", name: str) -> int:
    """The length of the one row that is the graph's only output. Raises ArtifactMalformed."""
    found = [(each.name, each.type, each.shape) for each in session.get_outputs()]
    if len(found) == 1 and found[0][:2] == (name, "tensor(float)"):
        shape = found[0][2]
        if len(shape) == _ROW and shape[0] == 1 and isinstance(shape[1], int):
            return shape[1]
    raise ArtifactMalformed("the graph gives other outputs than this code reads")


def bound(
    session: "InferenceSession", inputs: Mapping[str, NDArray[np.float32]], outputs: Mapping[str, NDArray[np.float32]]
) -> Callable[[], None]:
    """A run of the graph on what stands in `inputs`, which leaves its result in `outputs`: nothing is handed over or made.

    It raises an error of onnxruntime where these are of another shape than the graph's.
    """
    binding = session.io_binding()
    for bind, arrays in ((binding.bind_input, inputs), (binding.bind_output, outputs)):
        for name, array in arrays.items():
            bind(name, "cpu", 0, np.float32, array.shape, array.ctypes.data)
    # Only addresses are bound, so the arrays are kept here.
    kept = (inputs, outputs)

    def run(_kept: object = kept) -> None:
        session.run_with_iobinding(binding)

    return run
