"""Compiles classifier/featurize.c at installation, where there is a C compiler; without it numpy does the same work, slower."""

import hashlib
import os
import shutil
import subprocess
import sysconfig
from pathlib import Path
from typing import Any, Final

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCE: Final = Path("classifier/featurize.c")
LIBRARY: Final = Path("classifier/_featurize.so")
CHECKSUM: Final = LIBRARY.with_suffix(".sha256")
"""Of the library as it was compiled: one that is not whole ends the process that calls it."""
# No fused multiplication: the numbers have to be those of numpy.
_FLAGS: Final = ("-O2", "-fPIC", "-shared", "-ffp-contract=off")
_LONGEST_S: Final = 600
"""Zig makes parts of its own library first, which takes a minute where others compile, too."""


def compile_library(root: Path) -> str | None:
    """Compiles the library into the tree at `root`. Returns why it could not, or None."""
    compiler = os.environ.get("CC") or shutil.which("cc")
    if compiler is None:
        return "no C compiler was found"
    made = root / LIBRARY.with_suffix(f".{os.getpid()}.tmp")
    source = hashlib.sha256((root / SOURCE).read_bytes()).hexdigest()
    command = [*compiler.split(), *_FLAGS, f'-DFEATURIZE_SOURCE="{source}"', "-o", str(made), str(root / SOURCE), "-lm"]
    try:
        subprocess.run(command, check=True, capture_output=True, timeout=_LONGEST_S)  # noqa: S603 - the installer's own CC
        (root / CHECKSUM).write_text(hashlib.sha256(made.read_bytes()).hexdigest())
        # A process that has mapped the library before keeps the file that it has.
        made.replace(root / LIBRARY)
    except (OSError, subprocess.SubprocessError) as error:
        made.unlink(missing_ok=True)
        said = getattr(error, "stderr", None) or b""
        return f"{error} {said.decode(errors='replace')[-500:]}".strip()
    return None


class CompileHook(BuildHookInterface[Any]):
    """Hatchling's hook: the library goes into a wheel, and beside its source in an editable installation."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compiles, and says that the wheel is for this platform alone where there is something compiled in it."""
        if self.target_name != "wheel":
            return
        refused = compile_library(Path(self.root))
        if refused is not None:
            self.app.display_warning(f"scoring a prompt will take longer: {refused}")
            return
        build_data["artifacts"] += [str(LIBRARY), str(CHECKSUM)]
        if version != "editable":
            platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{platform}"


if __name__ == "__main__":
    raise SystemExit(compile_library(Path(__file__).parent))
