"""Releases: one version, archives that hold what they should, a wheel that works by itself."""

import re
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

import iceform

ROOT = Path(__file__).parents[1]


def test_the_version_is_written_once_and_cited():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert "version" in project["project"]["dynamic"]
    assert "version" not in project["project"]
    path = ROOT / project["tool"]["hatch"]["version"]["path"]
    assert f'__version__ = "{iceform.__version__}"' in path.read_text(encoding="utf-8")
    cited = re.search(r"^version: (\S+)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    assert cited
    assert cited[1] == iceform.__version__


def test_addresses_are_those_that_are_cited():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    cited = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert project["urls"]
    assert all(address in cited for address in project["urls"].values())


def test_pythons_that_are_named_include_the_one_that_is_tried():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    least = re.search(r"\d+\.\d+", project["requires-python"])
    assert least
    assert f"Programming Language :: Python :: {least[0]}" in project["classifiers"]


SMOKE = """
import torch
import iceform as ice
from iceform.tables.storage import SHIPPED
assert list(SHIPPED.glob("*.safetensors")), "no tables came along"
it = ice.Interpolant.fit(torch.tanh, -4, 4, 1e-8)
assert it.kind == "proven" and it.error <= 1e-8
step = ice.paper.GradientStep("squared", 0.5, dim=3, samples=8)
assert step.certificate.kind == "proven" and step.certificate.error < 1e-5
print(ice.__version__, ice.__file__)
"""


PACKAGES_SMOKE = """
import torch
from iceform.cli import main
from iceform_estimators import InContextRidge
from iceform_tolerance import tolerance
X = torch.rand(8, 2, dtype=torch.float64)
assert InContextRidge().fit(X.numpy(), X.sum(1).numpy()).certificate_.kind == "proven"
q = torch.rand(1, 1, 4, 8)
assert tolerance(q, q, q, dtype=torch.float32).shape == q.shape
assert main(["list"]) == 0
"""


def built(folder: Path, target: Path) -> tuple[Path, Path]:
    """Wheel and archive of a distribution."""
    before = set(target.glob("*"))
    subprocess.run(
        [sys.executable, "-m", "build", "--outdir", str(target), str(folder)],
        check=True,
        capture_output=True,
    )
    new = set(target.glob("*")) - before
    (wheel,) = (path for path in new if path.suffix == ".whl")
    (sdist,) = (path for path in new if path.suffix == ".gz")
    return wheel, sdist


def said_by(code: str, wheels: list[Path], place: Path) -> str:
    """What code prints where these wheels are installed, and what they need is seen through."""
    venv.create(place, with_pip=True, system_site_packages=False)
    python = place / "bin" / "python"
    install = [str(python), "-m", "pip", "install", "--quiet", "--no-deps", *map(str, wheels)]
    subprocess.run(install, check=True, capture_output=True)
    others = [path for path in sys.path if path.endswith("site-packages")]
    own = next((place / "lib").glob("python*/site-packages"))
    seen = f"import sys; sys.path[:0] = [{str(own)!r}]; sys.path += {others!r}\n{code}"
    done = subprocess.run(
        [str(python), "-I", "-c", seen], check=False, capture_output=True, text=True, cwd=place
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.mark.slow
def test_the_wheel_and_the_sdist_install_and_work(tmp_path):
    wheel, sdist = built(ROOT, tmp_path)
    with zipfile.ZipFile(wheel) as archive:
        inside = archive.namelist()
    assert "iceform/py.typed" in inside
    assert not [name for name in inside if name.startswith(("tests", "docs"))]
    with tarfile.open(sdist) as archive:
        packed = archive.getnames()
    top = f"iceform-{iceform.__version__}"
    for name in ("CHANGELOG.md", "tests/test_release.py", "src/iceform/__init__.py", "Makefile"):
        assert f"{top}/{name}" in packed, name
    version, where = said_by(SMOKE, [wheel], tmp_path / "env").split()
    assert version == iceform.__version__
    assert Path(where).is_relative_to(tmp_path / "env")


@pytest.mark.slow
def test_packages_install_beside_it_and_work(tmp_path):
    """The playground's wheel, which holds the built page, is made where npm is: ``make page``."""
    wheels = [built(ROOT, tmp_path)[0]]
    for name in ("estimators", "tolerance"):
        wheel, sdist = built(ROOT / "packages" / name, tmp_path)
        with zipfile.ZipFile(wheel) as archive:
            inside = archive.namelist()
            (about,) = (n for n in inside if n.endswith("/METADATA"))
            told = archive.read(about).decode()
        assert f"iceform_{name}/py.typed" in inside
        assert not [n for n in inside if "_tests" in n]
        assert re.search(r"^Requires-Dist: iceform(\[|$)", told, re.MULTILINE)
        assert "License-Expression: Apache-2.0" in told
        assert f"# iceform-{name}" in told  # its README, for the index's page
        with tarfile.open(sdist) as archive:
            assert any("_tests/" in n for n in archive.getnames())
        wheels.append(wheel)
    assert "ridge" in said_by(PACKAGES_SMOKE, wheels, tmp_path / "env")
