"""Code that is run where iceform cannot be imported; pytest is not needed."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

ALONE = """
    import sys

    class Blocked:
        @staticmethod
        def find_spec(name, path=None, target=None):
            if name.split(".")[0] == "iceform":
                raise ImportError("iceform is not here")

    sys.meta_path.insert(0, Blocked)
    try:
        import iceform
    except ImportError:
        pass
    else:
        raise SystemExit("iceform was importable")
    import torch
    from safetensors.torch import load_file, save_file
    torch.set_num_threads(1)
"""


def _elsewhere():
    """The environment without folders that iceform could be imported from."""
    folders = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    kept = [f for f in folders if f and not (Path(f) / "iceform").exists()]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(kept)}


def alone(code, *arguments):
    """Run code in a process in which iceform cannot be imported."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(ALONE) + textwrap.dedent(code), *arguments],
        capture_output=True, text=True, check=False, env=_elsewhere(),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout
