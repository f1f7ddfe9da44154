"""The C compiler's part: sources → a shared library for this CPU, once, kept in the user's cache.

A library's name is a digest of all that it depends on, so that a new version of isonorm, of the
compiler or of torch, or another kind of CPU that shares the folder, builds its own. It appears
there complete or not at all.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import platform
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch

from ..choice import LARGEST_NATIVE_GROUP, NATIVE_PADDING

HERE = Path(__file__).parent
SOURCES = ("passes.c", "newton.c", "launch.c")
HEADERS = ("multiply.h", "tile.h")
#: Bytes of the digest that a library ends with.
DIGEST_SIZE = hashlib.sha256().digest_size
#: Seconds after which a compiler is taken to hang.
PATIENCE = 120
#: How folders begin in which a library is being built.
BUILDING = "building-"

#: How C calls torch's types, and their bytes.
REALS = {torch.float32: ("float", 4), torch.float64: ("double", 8)}
#: Bytes in a vector, and the flags, of what torch finds a CPU capable of; elsewhere 16 and none.
CAPABILITIES = {
    "AVX512": (64, ("-mavx512f", "-mavx512dq", "-mavx512bw", "-mavx512vl", "-mfma")),
    "AVX2": (32, ("-mavx2", "-mfma")),
}
FLAGS = ("-std=gnu11", "-O3", "-fPIC", "-fno-math-errno", "-fopenmp")


class Unavailable(Exception):
    """Why no library can be built here, in words that follow "because"."""


class Failed(Exception):
    """The compiler's own reason."""


class Hung(Failed):
    """The compiler was still at it: once is enough to wait for that."""


class Toolchain(NamedTuple):
    compiler: tuple[str, ...]
    version: str
    openmp: Path


def libraries(dtype: torch.dtype) -> Iterator[Path]:
    """Libraries for numbers of that type, each to be tried where the one before cannot be loaded:
    by each compiler in turn, where the one before fails.
    """
    failed: Failed | None = None
    for tools in _toolchains():
        try:
            yield from _libraries_by(tools, dtype)
        except Failed as why:
            failed = failed or why
    if failed is not None:
        raise failed


def _libraries_by(tools: Toolchain, dtype: torch.dtype) -> Iterator[Path]:
    """The library in the user's cache, built if it is not there, or damaged; and this process's
    own.
    """
    real, bytes_each = REALS[dtype]
    width, own = CAPABILITIES.get(torch.backends.cpu.get_cpu_capability(), (16, ()))
    told = {
        "REAL": real,
        "LANES": width // bytes_each,
        "PAD": NATIVE_PADDING,
        "MOST_FEATURES": LARGEST_NATIVE_GROUP,
    }
    flags = (*FLAGS, *own, *(f"-D{name}={value}" for name, value in told.items()))
    digest = hashlib.sha256(repr((tools, flags, platform.machine(), platform.libc_ver())).encode())
    for name in SOURCES + HEADERS:
        digest.update((HERE / name).read_bytes())
    name = f"native-{real}-{digest.hexdigest()[:16]}.so"

    try:
        shared = _cache() / name
        if _is_whole(shared):
            yield shared
        yield _build(tools, flags, shared)
    except Hung:
        raise
    except (Failed, OSError, RuntimeError):
        pass  # no home, none to write to, or no space
    yield _build(tools, flags, _own_folder() / name)


def _is_whole(library: Path) -> bool:
    """Whether it ends with a digest of the rest: of a library with pages missing, whoever loads it
    dies before anybody can say so.
    """
    if not library.is_file():
        return False
    whole = library.read_bytes()
    return whole[-DIGEST_SIZE:] == _digest(whole[:-DIGEST_SIZE])


def _digest(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()


def _toolchains() -> Iterator[Toolchain]:
    """CC if that is GCC, as the sources are written for it; then ``gcc``."""
    if sys.platform != "linux":
        raise Unavailable(f"native code is built on Linux, and this is {sys.platform}")
    found: list[Toolchain] = []
    for compiler in (_words(os.environ.get("CC", "")), ["gcc"]):
        if compiler and shutil.which(compiler[0]):
            try:
                version = _run([*compiler, "--version"])
            except (Failed, OSError):
                continue
            if "Free Software Foundation" in version:
                tools = Toolchain(tuple(compiler), version.split("\n")[0], _openmp())
                if tools not in found:
                    found.append(tools)
                    yield tools
    if not found:
        raise Unavailable("there is no GCC to build native code with, neither as CC nor as gcc")


def _words(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError:  # quotation that does not end
        return []


def _openmp() -> Path:
    """The OpenMP library that torch's threads belong to: with one of its own, the library's threads
    would wait beside torch's, each taking the others' cores.
    """
    beside = sorted((Path(torch.__file__).parent / "lib").glob("libgomp*.so*"))
    if beside:
        return beside[0]
    for line in Path("/proc/self/maps").read_text().splitlines():
        path = Path(line.split(maxsplit=5)[-1])
        if path.name.startswith(("libgomp.", "libgomp-", "libiomp5.", "libomp.")):
            return path
    raise Unavailable("torch was built without OpenMP")


def _cache() -> Path:
    """The user's folder, where nobody else can put what would be run here."""
    base = os.environ.get("XDG_CACHE_HOME")
    folder = (Path(base) if base else Path.home() / ".cache") / "isonorm"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = folder.stat()
    if status.st_uid != os.getuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise PermissionError(f"others can write to {folder}")
    return folder


def _own_folder() -> Path:
    """This process's, gone when it ends."""
    return _folder_of(os.getpid())


@cache
def _folder_of(owner: int) -> Path:
    folder = tempfile.mkdtemp(prefix="isonorm-")

    def remove() -> None:
        if os.getpid() == owner:  # not a process that was forked
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)
    return Path(folder)


def _build(tools: Toolchain, flags: tuple[str, ...], target: Path) -> Path:
    """Compiled beside its place and moved there: several processes may do so at once."""
    _tidy(target.parent)
    with tempfile.TemporaryDirectory(prefix=BUILDING, dir=target.parent) as folder:
        made, objects = Path(folder) / target.name, []
        for source in SOURCES:
            objects.append(str(Path(folder) / f"{source}.o"))
            _run([*tools.compiler, *flags, "-c", str(HERE / source), "-o", objects[-1]])
        # Without -fopenmp, which here would add the compiler's own library.
        _run([*tools.compiler, "-shared", *objects, str(tools.openmp), "-lm", "-o", str(made)])
        with made.open("r+b") as file:
            file.write(_digest(file.read()))
            file.flush()
            os.fsync(file.fileno())
        os.replace(made, target)
    return target


def _tidy(folder: Path) -> None:
    """Without what was left by processes that were killed while they built."""
    for left in folder.glob(f"{BUILDING}*"):
        with suppress(OSError):
            if time.time() - left.stat().st_mtime > 10 * PATIENCE:
                shutil.rmtree(left)


def _run(command: list[str]) -> str:
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",  # names of files may be anything
            timeout=PATIENCE,
            env=os.environ | {"LC_ALL": "C"},
        )
    except subprocess.TimeoutExpired:
        raise Hung(f"{command[0]} did not end within {PATIENCE} seconds") from None
    if done.returncode:
        told = done.stderr.strip() or f"it ended with status {done.returncode}"
        errors = [line for line in told.splitlines() if "error" in line] or [told]
        raise Failed(f"{command[0]} failed: {errors[0].strip()}")
    return done.stdout
