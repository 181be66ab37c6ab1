"""What the page runs in a browser beside its own modules: archives of npm's registry, checked."""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from iceform.errors import IntegrityError, ProgramError


@dataclass(frozen=True)
class NpmPackage:
    """A package in one version: what its registry says of the archive, and the files to take.

    ``files`` are paths within the package, with the names that the page calls them by; those that
    end in ".gz" are compressed.
    """

    name: str
    version: str
    sha512: str
    files: Mapping[str, str]

    def fetch(self, keep: Path) -> dict[str, bytes]:
        """Its files, from the archive in the folder ``keep``, which npm fetches the first time."""
        archive = keep / f"{self.name}-{self.version}.tgz"
        if not archive.exists():
            keep.mkdir(parents=True, exist_ok=True)
            self._download(archive)
        data = archive.read_bytes()
        digest = base64.b64encode(hashlib.sha512(data).digest()).decode()
        if digest != self.sha512:
            archive.unlink()
            raise IntegrityError(
                f"{archive} is not {self.name} {self.version}: its SHA-512 is {digest[:16]}..., "
                f"expected {self.sha512[:16]}...; it was removed, run this again"
            )
        with tarfile.open(fileobj=io.BytesIO(data)) as packed:
            return {own: _member(packed, name, own) for name, own in self.files.items()}

    def _download(self, archive: Path) -> None:
        npm = shutil.which("npm")
        advice = f"or put the file there yourself: {self.name} {self.version} as npm pack writes it"
        if npm is None:
            raise ProgramError(
                f"npm is missing, which fetches what the page runs in a browser into {archive}; "
                f"install Node.js, {advice}"
            )
        with tempfile.TemporaryDirectory() as folder:
            command = [npm, "pack", "--silent", f"{self.name}@{self.version}"]
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
            written = sorted(Path(folder).glob("*.tgz"))
            if done.returncode or not written:
                said = done.stderr.strip().splitlines()[-1:] or ["nothing was said"]
                raise ProgramError(
                    f"npm could not fetch {self.name}: {said[0]}; try again, {advice}"
                )
            shutil.move(written[0], archive)


def _member(packed: tarfile.TarFile, name: str, own: str) -> bytes:
    entry = packed.extractfile(f"package/{name}")
    assert entry is not None
    data = entry.read()
    return gzip.compress(data, mtime=0) if own.endswith(".gz") else data


PACKAGES = (
    NpmPackage(
        "onnxruntime-web",
        "1.30.0",
        "q0y+JrrtukXSzsBWEMccVfqX25LRmosXHF+CaRJmg8pZClzcV7svNc4rKY3jL02Vb7QmRMDs1SigqR4CXAfKYQ==",
        {
            "dist/ort.wasm.min.mjs": "ort.js",
            "dist/ort-wasm-simd-threaded.mjs": "ort-wasm.js",
            "dist/ort-wasm-simd-threaded.wasm": "ort.wasm.gz",
        },
    ),
    NpmPackage(
        "plotly.js-cartesian-dist-min",
        "4.1.1",
        "o8GrFeusncwBIxbBynRJpY4pkgVB6caM+JLpwrLYbbsO7dZ8FJ+SVN2Fr+L7kiG/Z6w4P5O0Jus/Qr5EefHVeg==",
        {"plotly-cartesian.min.js": "plotly.js.gz"},
    ),
)
