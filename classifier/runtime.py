"""The ONNX graph of a trained model, run by onnxruntime."""

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from classifier.manifest import ArtifactError, ArtifactMalformed

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

Values = NDArray[np.float32]
Run = Callable[[], None]

INPUTS: Final = ("gist", "sums")
"""Names of the graph's inputs, as `Inputs` has them."""
OUTPUT: Final = "scores"
"""One row: the logit of the domain, the loads, log tokens, a score for each kind of task, and the logit of each tier or more."""
_FLOAT: Final = "tensor(float)"
_SEVEREST_ONLY: Final = 4
_ROW: Final = 2


class RuntimeMissing(ArtifactError):
    """onnxruntime is not installed, or is broken."""


class Graph:
    """A graph that is ready to run, on the caller's thread."""

    width: int
    """The number of scores."""

    def __init__(self, model: bytes) -> None:
        """Open the graph. Raises RuntimeMissing, or ArtifactMalformed for a graph of other inputs or outputs."""
        self._session = _session(model)
        if {each.name: each.type for each in self._session.get_inputs()} != dict.fromkeys(INPUTS, _FLOAT):
            raise ArtifactMalformed("the graph takes other inputs than this code gives it")
        self.width = _width(self._session)

    def on(self, gist: Values, sums: Values, scores: Values) -> Run:
        """Return a run on the rows `gist` and `sums` that leaves its result in `scores`, (1, width), without copies. It raises an
        error of onnxruntime where a row is of another length than the graph's.
        """
        session, binding = self._session, self._session.io_binding()
        rows = {INPUTS[0]: gist, INPUTS[1]: sums}
        for name, row in rows.items():
            binding.bind_input(name, "cpu", 0, np.float32, row.shape, row.ctypes.data)
        binding.bind_output(OUTPUT, "cpu", 0, np.float32, scores.shape, scores.ctypes.data)
        # Only addresses are bound, so the arrays are kept here.
        kept: Mapping[str, Values] = {**rows, OUTPUT: scores}

        def run(_kept: object = kept) -> None:
            session.run_with_iobinding(binding)

        return run


def _session(model: bytes) -> "InferenceSession":
    # onnxruntime reads this when it loads; its telemetry would leave a file in the folder for temporary ones.
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    try:
        import onnxruntime as ort  # noqa: PLC0415 - Without it the rule serves.

        options = ort.SessionOptions()
    except Exception as error:  # A library that is broken, or of which files were left behind, fails in its own way.
        raise RuntimeMissing(f"onnxruntime does not load: {type(error).__name__}") from error
    # The graph takes microseconds, and the other cores are for the requests.
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.log_severity_level = _SEVEREST_ONLY
    try:
        return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's errors share no base class.
        raise ArtifactMalformed(f"the graph does not load: {type(error).__name__}") from error


def _width(session: "InferenceSession") -> int:
    """Return the length of the one row that is the graph's only output. Raises ArtifactMalformed."""
    found = [(each.name, each.type, each.shape) for each in session.get_outputs()]
    if len(found) == 1 and found[0][:2] == (OUTPUT, _FLOAT):
        shape = found[0][2]
        if len(shape) == _ROW and shape[0] == 1 and isinstance(shape[1], int):
            return shape[1]
    raise ArtifactMalformed("the graph gives other outputs than this code reads")
