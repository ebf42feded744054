"""Build the agent's image without a registry: from this machine's Python and installed packages.

It holds what deployments/images/agent.Dockerfile makes of a base image: the interpreter with its
shared libraries, the distributions of agent-requirements.txt with all that they need, and
prefect_bt. Files keep the paths that they have here, so that the loader and the interpreter find
them; only packages move, to the interpreter's own site-packages.
"""

from __future__ import annotations

import compileall
import hashlib
import io
import re
import shutil
import ssl
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution, distribution
from pathlib import Path

import certifi
import docker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
REQUIREMENTS = ROOT / "deployments/images/agent-requirements.txt"
USER = 65532
_VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"
PYTHON = Path(sys.base_prefix, "bin", f"python{_VERSION}")
_STDLIB = Path(sysconfig.get_path("stdlib", "posix_prefix", {"installed_base": sys.base_prefix}))
_LEFT_OUT = {"ensurepip", "idlelib", "lib2to3", "site-packages", "test", "tests", "tkinter"}
_LEFT_OUT |= {"dist-packages", "turtledemo", f"config-{_VERSION}-x86_64-linux-gnu"}
_NO_LIBRARY = re.compile(
    r"(_test|_tkinter|_ctypes_test|_curses|xxlimited|xxsub|_xxtest|nis|readline)"
)
_LABEL = "prefect-bt.test.content"
_CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"
_CHANGES = (
    "ENV PATH=/usr/local/bin:/usr/bin:/bin HOME=/tmp",
    "ENV PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1",
    "WORKDIR /tmp",
    f"USER {USER}:{USER}",
    'ENTRYPOINT ["python", "-m", "prefect_bt.node_agent.pod"]',
)


def build_agent_image(engine: docker.APIClient, tag: str) -> str:
    """Return `tag` (repository:tag), which the Engine then has; an image of this content is reused.

    Several tags may name one image: whoever removes a tag does not take it from others.
    """
    key = _content_key()
    repository, _, name = tag.rpartition(":")
    if same := engine.images(filters={"label": f"{_LABEL}={key}"}, quiet=True):
        engine.tag(same[0], repository, name, force=True)
        return tag
    changes = [*_CHANGES, f"LABEL {_LABEL}={key}"]
    with tempfile.NamedTemporaryFile(suffix=".tar") as file:
        write_agent_rootfs(Path(file.name))
        engine.import_image_from_data(file, repository=repository, tag=name, changes=changes)
    return tag


def write_agent_rootfs(path: Path) -> None:
    """Write the image's root file system as a tar file."""
    with tempfile.TemporaryDirectory() as folder, tarfile.open(path, "w") as tar:
        package = _compiled_package(Path(folder))
        site = _site_packages()
        native = [PYTHON]
        for source in _stdlib_files():
            _add_file(tar, source, source)
            native += [source] if source.suffix == ".so" else []
        for source, name in _distribution_files():
            _add_file(tar, source, site / name)
            native += [source] if ".so" in source.suffixes else []
        for source in _package_files(package):
            _add_file(tar, source, site / "prefect_bt" / source.relative_to(package))
        _add_file(tar, PYTHON, PYTHON)
        for library in _shared_libraries(native):
            _add_file(tar, library, library)
        _add_system(tar)


def required_names() -> set[str]:
    """Return the distributions that agent-requirements.txt names, in their canonical spelling."""
    lines = REQUIREMENTS.read_text(encoding="utf-8").splitlines()
    return {
        canonicalize_name(Requirement(line).name) for line in lines if re.match(r"[A-Za-z]", line)
    }


def node_distributions() -> list[Distribution]:
    """Return the distributions of agent-requirements.txt and those that they need, sorted."""
    todo, found = [Requirement(name) for name in required_names()], dict[str, Distribution]()
    while todo:
        wanted = todo.pop()
        name = canonicalize_name(wanted.name)
        if name in found:
            continue
        found[name] = distribution(name)
        needs = [Requirement(text) for text in found[name].requires or []]
        extras = wanted.extras or {""}
        todo += [
            need
            for need in needs
            if need.marker is None
            or any(need.marker.evaluate({"extra": extra}) for extra in extras)
        ]
    return [found[name] for name in sorted(found)]


def _content_key() -> str:
    digest = hashlib.sha256(f"{sys.version} {PYTHON}".encode())
    for one in node_distributions():
        digest.update(f"{one.name}=={one.version}\n".encode())
    for path in (Path(__file__), *_package_files(ROOT / "prefect_bt")):
        if path.suffix != ".pyc":
            digest.update(f"{path}\n".encode() + path.read_bytes())
    return digest.hexdigest()


def _stdlib_files() -> Iterator[Path]:
    for path in _files_below(_STDLIB):
        if not (path.suffix == ".so" and _NO_LIBRARY.match(path.name)) and path.suffix != ".a":
            yield path


def _files_below(folder: Path) -> Iterator[Path]:
    """Yield the files that the image holds, sources and their byte code alike."""
    for path in sorted(folder.iterdir()):
        if path.is_dir():
            if path.name not in _LEFT_OUT:
                yield from _files_below(path)
        elif path.suffix != ".pyc" or path.name.endswith(f".{sys.implementation.cache_tag}.pyc"):
            yield path


def _package_files(package: Path) -> Iterator[Path]:
    for path in _files_below(package):
        if "examples" not in path.relative_to(package).parts:
            yield path


def _compiled_package(folder: Path) -> Path:
    """Return a copy of prefect_bt with byte code for every module, links turned into folders."""
    package = folder / "prefect_bt"
    ignored = shutil.ignore_patterns("__pycache__", "examples")
    shutil.copytree(ROOT / "prefect_bt", package, ignore=ignored)
    site = _site_packages()
    assert compileall.compile_dir(package, quiet=1, stripdir=folder, prependdir=site)
    return package


def _distribution_files() -> Iterator[tuple[Path, str]]:
    """Yield files with their paths below site-packages; scripts, which lie outside, are none."""
    for one in node_distributions():
        for file in one.files or ():
            source = Path(str(one.locate_file(file)))
            if not file.parts[0].startswith(("..", "/")) and source.is_file():
                yield source, file.as_posix()


def _site_packages() -> Path:
    """Return where the interpreter looks for packages when no virtual environment is entered."""
    code = "import site; print(site.getsitepackages()[0])"
    return Path(subprocess.check_output([PYTHON, "-I", "-c", code], text=True).strip())


def _shared_libraries(files: Iterable[Path]) -> list[Path]:
    """Return what `ldd` names for the files, the loader too; not what a wheel brings itself."""
    done = subprocess.run(["ldd", *files], capture_output=True, text=True, check=False)
    found = re.findall(r"(?:=>\s+|^\s+)(/\S+)(?= \(0x)", done.stdout, re.MULTILINE)
    return sorted(path for path in map(Path, set(found)) if "site-packages" not in path.parts)


def _add_file(tar: tarfile.TarFile, source: Path, name: Path) -> None:
    info = tarfile.TarInfo(str(name).lstrip("/"))
    stat = source.stat()
    info.size, info.mtime = stat.st_size, int(stat.st_mtime)
    info.mode = 0o755 if stat.st_mode & 0o100 else 0o644
    with source.open("rb") as stream:
        tar.addfile(info, stream)


def _add_system(tar: tarfile.TarFile) -> None:
    """Add what an image has beside programs: users, names, certificates, mount points."""
    for folder in ("dev", "proc", "sys", "tmp"):
        info = tarfile.TarInfo(folder)
        info.type, info.mode = tarfile.DIRTYPE, 0o1777 if folder == "tmp" else 0o755
        tar.addfile(info)
    users = f"root:x:0:0:root:/root:/bin/false\nagent:x:{USER}:{USER}:agent:/tmp:/bin/false\n"
    _add_text(tar, "etc/passwd", users)
    _add_text(tar, "etc/group", f"root:x:0:\nagent:x:{USER}:\n")
    _add_text(tar, "etc/nsswitch.conf", "passwd: files\ngroup: files\nhosts: files dns\n")
    authorities = Path(_CERTIFICATES)
    _add_file(tar, authorities if authorities.is_file() else Path(certifi.where()), authorities)
    for name in ("python", "python3"):
        _add_link(tar, f"usr/local/bin/{name}", str(PYTHON))
    usual = ssl.get_default_verify_paths().openssl_cafile
    if usual != _CERTIFICATES:
        _add_link(tar, usual.lstrip("/"), _CERTIFICATES)


def _add_text(tar: tarfile.TarFile, name: str, text: str) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(text.encode()), 0o644
    tar.addfile(info, io.BytesIO(text.encode()))


def _add_link(tar: tarfile.TarFile, name: str, target: str) -> None:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = tarfile.SYMTYPE, target
    tar.addfile(info)
