"""Runs vLLM's API server in vLLM's own environment, and takes all of it down when the parent is gone.

Not the `vllm` command: in the package for CPUs it fails on metadata that it misses. The parent holds one end of a pipe;
the engine has processes of its own, which are in this one's group.
"""

import os
import runpy
import signal
import threading


def _end_with_parent() -> None:
    while os.read(0, 4_096):
        pass
    os.killpg(os.getpgrp(), signal.SIGKILL)


if __name__ == "__main__":
    threading.Thread(target=_end_with_parent, daemon=True).start()
    runpy.run_module("vllm.entrypoints.openai.api_server", run_name="__main__", alter_sys=True)
