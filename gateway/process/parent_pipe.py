"""A lifeline from parent to child: the child ends when its standard input ends.

The parent starts the child with `stdin=PIPE` and never writes. When the parent is gone, however it
died, the kernel closes its end and the child reads the end of its input. This works wherever there
are pipes, and unlike PR_SET_PDEATHSIG it does not depend on which of the parent's threads lives.
"""

import os
import sys
import threading
from collections.abc import Callable

_STDIN = 0


def follow_parent(parent_gone: Callable[[], None]) -> None:
    """Call `parent_gone` once, from a thread of its own, when standard input ends."""
    threading.Thread(target=_wait_for_end, args=(parent_gone,), name="lifeline", daemon=True).start()


def exit_with_parent() -> None:
    """End this process at once, without clean-up, when its parent is gone."""
    follow_parent(lambda: os._exit(1))


def _wait_for_end(parent_gone: Callable[[], None]) -> None:
    try:
        while os.read(_STDIN, 4096):
            pass
    except OSError as error:
        sys.stderr.write(f"standard input cannot be read ({error.strerror}); taking the parent for gone\n")
    parent_gone()
