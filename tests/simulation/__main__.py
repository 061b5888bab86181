"""`python -m tests.simulation --seed 17` tells the story of a seed; `--seeds 0-999` lives through many, each in a child of its own."""
# ruff: noqa: E402  The machine is replaced before anything is imported that looks at it.

import os
import sys

if os.environ.get("PYTHONHASHSEED") != "0":
    # The order of sets of words follows from it.
    again = [sys.executable, "-m", "tests.simulation", *sys.argv[1:]]
    os.execve(sys.executable, again, {**os.environ, "PYTHONHASHSEED": "0"})  # noqa: S606 - this very program

from tests.simulation import machine

machine.replace()

from tests.simulation.run import main

sys.exit(main(sys.argv[1:]))
