"""The wheel holds the built page, so that nobody who installs it needs npm."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

HERE = Path(__file__).parent
BUILT = HERE / "src" / "iceform_playground" / "built"
SOURCES = ("../../src", "../estimators/src", "src")


class PageHook(BuildHookInterface):
    """Builds the page where it is missing: with this interpreter's torch, and npm."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build before a wheel or an archive is written; an editable install goes without."""
        if version == "editable":
            return
        if not (BUILT / "index.html").exists():
            self._build()
        build_data["artifacts"].append("src/iceform_playground/built/**")

    def _build(self) -> None:
        """In a process of its own, which sees what is installed beside an isolated build."""
        paths = os.pathsep.join(str((HERE / source).resolve()) for source in SOURCES)
        done = subprocess.run(
            [sys.executable, "-m", "iceform_playground.site", str(BUILT)],
            cwd=HERE.parents[1],
            env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            said = done.stderr.strip().splitlines()[-1:] or ["nothing was said"]
            raise SystemExit(
                f"The playground's page is not built, and cannot be built here: {said[0]}. It "
                "takes npm once, and pip install '.[export]' ./packages/estimators before; or "
                "build it with 'make page'. Then build the wheel again."
            )
