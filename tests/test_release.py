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


@pytest.mark.slow
def test_the_wheel_and_the_sdist_install_and_work(tmp_path):
    subprocess.run(
        [sys.executable, "-m", "build", "--outdir", str(tmp_path), str(ROOT)],
        check=True,
        capture_output=True,
    )
    (wheel,) = tmp_path.glob("*.whl")
    (sdist,) = tmp_path.glob("*.tar.gz")
    with zipfile.ZipFile(wheel) as archive:
        inside = archive.namelist()
    assert "iceform/py.typed" in inside
    assert not [name for name in inside if name.startswith(("tests", "docs"))]
    with tarfile.open(sdist) as archive:
        packed = archive.getnames()
    top = f"iceform-{iceform.__version__}"
    for name in ("CHANGELOG.md", "tests/test_release.py", "src/iceform/__init__.py", "Makefile"):
        assert f"{top}/{name}" in packed, name
    # An environment of its own, in which only what iceform needs is seen through.
    place = tmp_path / "env"
    venv.create(place, with_pip=True, system_site_packages=False)
    python = place / "bin" / "python"
    install = [str(python), "-m", "pip", "install", "--quiet", "--no-deps", str(wheel)]
    subprocess.run(install, check=True, capture_output=True)
    others = [path for path in sys.path if path.endswith("site-packages")]
    own = next((place / "lib").glob("python*/site-packages"))
    code = f"import sys; sys.path[:0] = [{str(own)!r}]; sys.path += {others!r}\n{SMOKE}"
    done = subprocess.run(
        [str(python), "-I", "-c", code], check=True, capture_output=True, text=True, cwd=tmp_path
    )
    version, where = done.stdout.split()
    assert version == iceform.__version__
    assert Path(where).is_relative_to(place)
