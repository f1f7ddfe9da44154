"""The C compiler's part: sources → a shared library for this CPU, once, kept in the user's cache.

A library's name has two digests, of all that it depends on and of the compiler. So a new version
of isonorm, of the compiler or of torch, or another kind of CPU that shares the folder, builds its
own; and where there is no compiler any more, what an earlier one has built is used. It appears
there complete, and tried in another process, or not at all.
"""

from __future__ import annotations

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
from multiprocessing.util import Finalize
from pathlib import Path
from typing import NamedTuple

import torch

from ..choice import LARGEST_NATIVE_GROUP, NATIVE_PADDING

HERE = Path(__file__).parent
SOURCES = ("passes.c", "newton.c", "launch.c")
HEADERS = ("multiply.h", "tile.h")
#: The program that tries a new library.
TRIAL = "trial.py"
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


class Recipe(NamedTuple):
    """A library for one type of numbers: what the compiler is told, and how its name begins."""

    real: str
    flags: tuple[str, ...]
    prefix: str

    def name(self, tools: Toolchain) -> str:
        by = hashlib.sha256(repr(tools).encode()).hexdigest()
        return f"{self.prefix}-{by[:16]}.so"


def libraries(dtype: torch.dtype) -> Iterator[Path]:
    """Yield libraries for numbers of that type, each for where the one before cannot be loaded: by
    each compiler in turn, then those that other compilers have left in the user's cache.
    """
    failed: Exception | None = None
    try:
        for tools in _toolchains():
            try:
                yield from _libraries_by(tools, _recipe(dtype, tools.openmp))
            except (Failed, OSError) as why:
                failed = failed or why
    except Unavailable as why:
        failed = why
    if failed is not None:
        yield from _left_by_others(dtype)
        raise failed


def _recipe(dtype: torch.dtype, openmp: Path) -> Recipe:
    real, bytes_each = REALS[dtype]
    width, own = CAPABILITIES.get(torch.backends.cpu.get_cpu_capability(), (16, ()))
    told = {
        "REAL": real,
        "LANES": width // bytes_each,
        "PAD": NATIVE_PADDING,
        "MOST_FEATURES": LARGEST_NATIVE_GROUP,
    }
    flags = (*FLAGS, *own, *(f"-D{name}={value}" for name, value in told.items()))
    here = (flags, openmp, platform.machine(), platform.libc_ver(), _cpu())
    digest = hashlib.sha256(repr(here).encode())
    for name in (*SOURCES, *HEADERS, TRIAL):
        digest.update((HERE / name).read_bytes())
    return Recipe(real, flags, f"native-{real}-{digest.hexdigest()[:16]}")


def _cpu() -> str:
    """Return the features of the CPU, of which ``-march=native`` in CC may use any."""
    with suppress(OSError), open("/proc/cpuinfo") as lines:
        return next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return ""


def _libraries_by(tools: Toolchain, recipe: Recipe) -> Iterator[Path]:
    """Yield the library in the user's cache, built if it is not there, or damaged; and this
    process's own.
    """
    name = recipe.name(tools)
    try:
        shared = _cache() / name
        if _is_whole(shared):
            yield shared
        yield _build(tools, recipe, shared)
    except Hung:
        raise
    except (Failed, OSError, RuntimeError):
        pass  # no home, none to write to, or no space
    yield _build(tools, recipe, _own_folder() / name)


def _left_by_others(dtype: torch.dtype) -> Iterator[Path]:
    """Yield the libraries in the user's cache that fit, whichever compiler has built them."""
    with suppress(Unavailable, OSError, RuntimeError):
        prefix = _recipe(dtype, _openmp()).prefix
        yield from filter(_is_whole, sorted(_cache().glob(f"{prefix}-*.so")))


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
        raise Unavailable(
            "there is no GCC to build native code with, neither as CC nor as gcc: install gcc"
        )


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
    """Return the user's folder, in which others can put nothing that would be run here. Relative
    paths are ignored, as the XDG Base Directory Specification has it.
    """
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    folder = (base if base.is_absolute() else Path.home() / ".cache") / "isonorm"
    if not folder.is_absolute():
        raise FileNotFoundError(f"the home folder {Path.home()} is no absolute path")
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
    # atexit is not run in processes of multiprocessing; nor is this in one that was forked later
    Finalize(None, shutil.rmtree, (folder,), {"ignore_errors": True}, exitpriority=-1)
    return Path(folder)


def _build(tools: Toolchain, recipe: Recipe, target: Path) -> Path:
    """Compile a library beside its place, try it, and move it there: several processes may do so
    at once.
    """
    _tidy(target.parent)
    with tempfile.TemporaryDirectory(prefix=BUILDING, dir=target.parent) as folder:
        made, objects = Path(folder) / target.name, []
        for source in SOURCES:
            objects.append(str(Path(folder) / f"{source}.o"))
            _run([*tools.compiler, *recipe.flags, "-c", str(HERE / source), "-o", objects[-1]])
        # Without -fopenmp, which here would add the compiler's own library.
        _run([*tools.compiler, "-shared", *objects, str(tools.openmp), "-lm", "-o", str(made)])
        if not made.is_file():
            raise Failed(f"{' '.join(tools.compiler)} ended well, but wrote no library")
        _try(made, tools, recipe)
        with made.open("r+b") as file:
            file.write(_digest(file.read()))
            file.flush()
            os.fsync(file.fileno())
        os.replace(made, target)
    return target


def _try(made: Path, tools: Toolchain, recipe: Recipe) -> None:
    """Refuse a library that would end this process, or compute something else."""
    if not Path(sys.executable or "").name.startswith("python"):
        return  # a program that has Python inside, and would start anew
    command = [sys.executable, "-I", str(HERE / TRIAL), str(made), str(tools.openmp), recipe.real]
    try:
        _run(command)
    except Hung:
        raise
    except Failed as why:
        raise Failed(f"what {' '.join(tools.compiler)} builds does not run here: {why}") from None


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
