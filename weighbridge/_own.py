"""Where the program's own folders are: beside each other in a checkout, and in `_lib` where it is installed, so that none of their
names (`proxy`, `settings`, …) is taken from other packages.
"""

import runpy
import sys
from pathlib import Path

_LIB = Path(__file__).with_name("_lib")


def find_folders() -> None:
    """Let this process import the program's own folders, before any that have the same names."""
    if _LIB.is_dir() and str(_LIB) not in sys.path:
        sys.path.insert(0, str(_LIB))


def module(name: str) -> tuple[str, ...]:
    """Return the arguments by which an interpreter runs one of the program's own modules. No path is left in the environment, where the
    engines that we start would find it.
    """
    return ("-m", "weighbridge._own", name)


if __name__ == "__main__":
    find_folders()
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
