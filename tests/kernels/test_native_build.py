"""How native code comes to be: compiled once, shared, and done without where that is not to be."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import time
import warnings
from pathlib import Path

import pytest
import torch

import isonorm
from isonorm.kernels import choose, native
from isonorm.kernels.choice import INTERPRETING
from isonorm.kernels.native import build, library
from tests.kernels.paths import needs_native_code
from tests.processes import LIMIT, Command, call, python, together

pytestmark = [needs_native_code]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    """A user's folder in which nothing has been built; what is loaded from it is forgotten."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(build, "_own_folder", lambda: tmp_path)
    monkeypatch.setattr(build, "FLAGS", (*build.FLAGS, "-O0"))  # a fifth of the time
    library.load.cache_clear()
    yield tmp_path / "isonorm"
    library.load.cache_clear()


def program(folder: Path, name: str, script: str) -> Path:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def gcc() -> str:
    return next(build._toolchains()).compiler[0]


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def normalizes() -> bool:
    """Whether a layer whitens, by whichever implementation."""
    y = isonorm.IterNorm(6, num_iters=20)(torch.randn(512, 6))
    return torch.allclose(y.T @ y / 512, torch.eye(6), atol=1e-3)


def test_a_library_is_built_once_for_the_user_alone(cache, monkeypatch):
    assert native.why_not(torch.float32) is None and normalizes()
    (name,) = files(cache)
    assert name.startswith("native-float-") and name.endswith(".so")
    assert stat.S_IMODE(cache.stat().st_mode) == 0o700
    library.load.cache_clear()
    monkeypatch.setattr(build, "_build", lambda *_: pytest.fail("built again"))
    assert native.why_not(torch.float32) is None and normalizes()


@pytest.mark.parametrize("mode", [0o770, 0o707])
def test_what_others_can_write_is_not_run(cache, tmp_path, mode):
    cache.mkdir()
    planted = cache / next(build.libraries(torch.float32)).name
    planted.write_bytes(b"\x7fELF, and worse")
    cache.chmod(mode)
    assert next(build.libraries(torch.float32)).parent == tmp_path
    assert native.why_not(torch.float32) is None and normalizes()
    assert files(cache) == [planted.name] and planted.read_bytes() == b"\x7fELF, and worse"


def test_the_compiler_has_no_complaints(monkeypatch):
    monkeypatch.setattr(build, "FLAGS", (*build.FLAGS, "-Wall", "-Wextra", "-Werror"))
    assert next(build.libraries(torch.float32)).exists()


def test_other_sources_and_compilers_build_their_own(cache, tmp_path, monkeypatch):
    first = next(build.libraries(torch.float32))
    monkeypatch.setattr(build, "FLAGS", (*build.FLAGS, "-g"))
    assert next(build.libraries(torch.float32)) != first
    monkeypatch.setenv("CC", str(program(tmp_path, "own-cc", f'exec {gcc()} "$@"')))
    assert next(build.libraries(torch.float32)) != first
    assert len(files(cache)) == 3


def test_without_a_compiler_plain_torch_runs(cache, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert "there is no GCC" in str(native.why_not(torch.float32))
    choice = choose(torch.randn(4, 6), area="batch", operation="whiten")
    assert INTERPRETING or (choice.backend == "torch" and "there is no GCC" in choice.reason)
    assert normalizes() and not files(cache)


def test_another_compiler_named_by_cc_is_not_asked(tmp_path, monkeypatch):
    """The sources are GCC's: with CC=clang, gcc compiles them, if it is there."""
    other = program(tmp_path, "clang", 'test "$1" = --version && echo clang version 19 || exit 1')
    monkeypatch.setenv("CC", f"{other} -m64")
    assert next(build._toolchains()).compiler == ("gcc",)
    monkeypatch.setenv("CC", f"{gcc()} -DUNUSED=1")
    assert next(build._toolchains()).compiler == (gcc(), "-DUNUSED=1")


def test_a_cc_that_is_no_command_is_passed_over(monkeypatch):
    monkeypatch.setenv("CC", "gcc'")
    assert next(build._toolchains()).compiler == ("gcc",)


def test_what_a_killed_process_left_is_tidied_up(cache):
    for name, age in (("building-old", 11 * build.PATIENCE), ("building-new", 0)):
        folder = cache / name
        folder.mkdir(parents=True)
        (folder / "passes.c.o").touch()
        then = time.time() - age
        os.utime(folder, (then, then))
    cache.chmod(0o700)
    assert native.why_not(torch.float32) is None
    left = files(cache)
    assert left[0] == "building-new" and left[1].endswith(".so") and len(left) == 2


def test_a_process_that_was_forked_leaves_its_parents_folder():
    """The parent's own libraries are there as long as it is."""
    script = """
import os, sys
from isonorm.kernels.native import build
folder = build._own_folder()
child = os.fork()
if not child:
    assert build._own_folder() != folder
    sys.exit()
assert not os.waitpid(child, 0)[1]
print(folder.is_dir(), folder)
"""
    ended = python("-c", script)
    assert ended.code == 0, ended
    kept, folder = ended.output.split()
    assert kept == "True" and not Path(folder).exists()


def show_own_folder() -> None:
    print(build._own_folder())


def test_a_process_of_multiprocessing_leaves_no_folder():
    """It ends without what ``atexit`` would run."""
    ended = call(show_own_folder)
    assert ended.code == 0 and not Path(ended.output.strip()).exists(), ended


@pytest.fixture
def impatient(monkeypatch) -> None:
    """What compiles is not waited for; what tells a compiler's name is, as long as it takes."""
    run = subprocess.run

    def run_impatiently(command: list[str], **options):
        return run(command, **options | ({} if "--version" in command else {"timeout": 0.2}))

    monkeypatch.setattr(build.subprocess, "run", run_impatiently)


BROKEN = {
    "tells in no known letters": (r"printf '\377 error\n' >&2; exit 1", "failed: \ufffd error"),
    "fails": ("echo no space left: error >&2; exit 1", "failed: no space left: error"),
    "is killed": ("kill -9 $$", "failed: it ended with status -9"),
    "hangs": ("exec /bin/sleep 60", "did not end within"),
    "writes nothing": ("exit 0", "ended well, but wrote no library"),
}


def broken(folder: Path, script: str) -> str:
    """A compiler that says it is GCC, and no more."""
    version = 'test "$1" = --version && echo Free Software Foundation && exit 0'
    return str(program(folder, "broken-cc", f"{version}\n{script}"))


@pytest.mark.parametrize(("script", "why"), BROKEN.values(), ids=BROKEN.keys())
def test_a_broken_compiler_is_told_once_and_plain_torch_runs(
    cache, script, why, tmp_path, monkeypatch, request
):
    if "did not end" in why:
        request.getfixturevalue("impatient")
    monkeypatch.setenv("CC", broken(tmp_path, script))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.warns(RuntimeWarning, match="plain torch whitens.*ISONORM_BACKEND=torch") as told:
        assert why in str(native.why_not(torch.float32))
    assert why in str(told[0].message)
    assert normalizes() and not files(cache)  # and no second warning, which would be an error


def test_where_cc_cannot_build_them_gcc_does(cache, tmp_path, monkeypatch):
    monkeypatch.setenv("CC", broken(tmp_path, "exit 1"))
    assert native.why_not(torch.float32) is None and normalizes()
    assert len(files(cache)) == 1


@pytest.mark.parametrize("option", ["--version", "-E", "-S", "-c", "-M", "-fsyntax-only", "-r"])
def test_where_cc_writes_no_library_gcc_does(cache, option, monkeypatch):
    """These end well, with text or nothing at all."""
    monkeypatch.setenv("CC", f"{gcc()} {option}")
    assert native.why_not(torch.float32) is None and normalizes()
    assert len(files(cache)) == 1


def test_what_no_compiler_writes_is_told_of(tmp_path, monkeypatch):
    program(tmp_path, "gcc", "echo Free Software Foundation")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.warns(RuntimeWarning, match="because gcc ended well, but wrote no library"):
        native.why_not(torch.float32)


def run_with(cc: str, cache: str) -> None:
    os.environ |= {"CC": cc, "XDG_CACHE_HOME": cache}
    build.FLAGS = (*build.FLAGS, "-O0")  # in a process of its own
    library.load.cache_clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        print(native.why_not(torch.float32), normalizes(), 5e-324 * float(len(cc) > 0))


ENDS_AT_LOAD = "__attribute__((constructor)) static void end(void) { __builtin_trap(); }"
ENDS_AT_CALL = "#define omp_get_thread_num() (__builtin_trap(), 0)"


@pytest.mark.parametrize(
    "option",
    ["-fsanitize=address", "-fsanitize=thread", "-mabi=ms", "-ffast-math", "load.h", "call.h"],
)
def test_a_library_that_would_end_or_change_python_is_tried_elsewhere(tmp_path, option):
    """In a process of its own, which the library may end; gcc's is used instead. ``-ffast-math``
    rounds small numbers to zero, in all of the process that loads what it made.
    """
    (tmp_path / "load.h").write_text(ENDS_AT_LOAD)
    (tmp_path / "call.h").write_text("#include <omp.h>\n" + ENDS_AT_CALL)
    option = f"-include {tmp_path / option}" if option.endswith(".h") else option
    status, output, errors = call(run_with, f"{gcc()} {option}", str(tmp_path))
    assert (status, output) == (0, "None True 5e-324\n"), errors


def test_where_all_libraries_would_end_python_plain_torch_runs(cache, tmp_path, monkeypatch):
    (tmp_path / "load.h").write_text(ENDS_AT_LOAD)
    program(tmp_path, "gcc", f'exec {shutil.which(gcc())} -include {tmp_path}/load.h "$@"')
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    with pytest.warns(RuntimeWarning, match="what gcc builds does not run here.*status -"):
        native.why_not(torch.float32)
    assert normalizes() and not files(cache)


@pytest.mark.parametrize("gone", ["no compiler", "one that fails", "another compiler"])
def test_a_library_outlives_its_compiler(cache, tmp_path, monkeypatch, gone):
    first = next(build.libraries(torch.float32))
    if gone == "another compiler":  # has a library of its own
        monkeypatch.setenv("CC", str(program(tmp_path, "own-cc", f'exec {gcc()} "$@"')))
        assert next(build.libraries(torch.float32)) != first
        return
    if gone == "one that fails":
        program(tmp_path, "gcc", "test $1 = --version && echo Free Software Foundation || exit 1")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert native.why_not(torch.float32) is None and normalizes()
    library.load.cache_clear()
    first.write_bytes(first.read_bytes()[:-1])
    if gone == "no compiler":
        assert "there is no GCC" in str(native.why_not(torch.float32))
    with monkeypatch.context() as other:
        other.setattr(build, "_cpu", lambda: "another")
        assert not list(build._left_by_others(torch.float32))


@pytest.mark.parametrize("variable", ["XDG_CACHE_HOME", "HOME"])
def test_relative_folders_are_ignored(variable, tmp_path, monkeypatch):
    home, here = tmp_path / "home", tmp_path / "here"
    for folder in (home, here):
        folder.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv(variable, "relative")
    made = next(build.libraries(torch.float32))
    expected = home / ".cache" / "isonorm" if variable != "HOME" else tmp_path
    assert made.parent == expected and not files(here)


def test_where_the_cache_is_full_a_process_keeps_its_own(cache, tmp_path, monkeypatch):
    """The compiler says so, not Python."""
    full = f'case "$*" in *{cache}*) echo No space left on device >&2; exit 1;; esac'
    monkeypatch.setenv("CC", str(program(tmp_path, "full-cc", f'{full}\nexec {gcc()} "$@"')))
    assert native.why_not(torch.float32) is None and normalizes()
    assert not files(cache) and len(list(tmp_path.glob("native-float-*.so"))) == 1


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("cc", ["", "gcc"])
def test_a_compiler_that_hangs_is_waited_for_once(cc, tmp_path, monkeypatch):
    tried = tmp_path / "tried"
    hanging = f'test "$1" = --version && echo Free Software Foundation && exit 0; echo >> {tried}'
    program(tmp_path, "gcc", f"{hanging}; exec /bin/sleep 60")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CC", cc)
    with pytest.warns(RuntimeWarning, match="did not end"):
        native.why_not(torch.float32)
    assert tried.read_text() == "\n"


@pytest.mark.parametrize("home", ["a file", "nowhere"])
def test_where_no_cache_can_be_a_process_builds_its_own(home, tmp_path, monkeypatch):
    monkeypatch.delenv("XDG_CACHE_HOME")
    if home == "nowhere":
        monkeypatch.delenv("HOME")
        monkeypatch.setattr(Path, "home", lambda: (_ for _ in ()).throw(RuntimeError("no home")))
    else:
        (tmp_path / "home").write_text("not a folder")
        monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert native.why_not(torch.float32) is None and normalizes()
    assert [path.name[:13] for path in tmp_path.glob("*.so")] == ["native-float-"]


@pytest.mark.parametrize(
    "damage",
    [
        lambda _: b"\x7fELF, and no more of it",
        lambda whole: whole[:40],
        lambda whole: whole[: len(whole) // 2],
        lambda whole: whole[:4096] + bytes(8192) + whole[12288:],
        lambda _: b"",
    ],
    ids=["other bytes", "cut off", "half", "with a hole", "empty"],
)
def test_a_damaged_library_is_replaced(cache, tmp_path, damage):
    path = next(build.libraries(torch.float32))
    whole = path.read_bytes()
    path.write_bytes(damage(whole))
    assert native.why_not(torch.float32) is None and normalizes()
    assert path.read_bytes() == whole and files(cache) == [path.name]
    assert not list(tmp_path.glob("*.so"))


def test_many_processes_may_build_at_once(cache, tmp_path):
    """One of them is killed while it does so."""
    go = tmp_path / "go"
    wait = f'case "$*" in *-c*) while [ ! -e {go} ]; do sleep 0.01; done;; esac'
    compiler = program(tmp_path, "waiting-cc", f'{wait}\nexec {gcc()} "$@"')
    script = (
        "import torch; from isonorm.kernels.native import build, why_not\n"
        f"build.PATIENCE = {LIMIT}; build.FLAGS += ('-O0',); print(why_not(torch.float32))"
    )
    words, more = [sys.executable, "-c", script], {"CC": str(compiler)}
    with Command(words, more) as killed, Command(words, more) as one, Command(words, more) as other:
        for process in (killed, one, other):
            process.until(lambda: len(files(cache)) == 3)  # all of them build
        killed.kill()
        go.touch()
        assert [ended.output for ended in together(one, other)] == ["None\n"] * 2
    libraries = [name for name in files(cache) if name.endswith(".so")]
    assert len(libraries) == 1


def test_a_folder_of_somebody_elses_is_not_used(cache, tmp_path, monkeypatch):
    cache.mkdir(mode=0o700)
    owner = cache.stat().st_uid
    monkeypatch.setattr(os, "getuid", lambda: owner + 1)
    assert next(build.libraries(torch.float32)).parent == tmp_path
    assert not files(cache)


@pytest.mark.parametrize("name", build.SOURCES + build.HEADERS)
def test_another_version_of_any_source_has_a_library_of_its_own(name, tmp_path, monkeypatch):
    monkeypatch.setattr(build, "_build", lambda tools, recipe, target: target)
    first = next(build.libraries(torch.float32))
    sources = tmp_path / "sources"
    shutil.copytree(build.HERE, sources)
    with (sources / name).open("a") as file:
        file.write("/* changed */\n")
    monkeypatch.setattr(build, "HERE", sources)
    assert next(build.libraries(torch.float32)) != first


@pytest.mark.parametrize("asked", ["platform.machine", "platform.libc_ver", "_cpu"])
def test_machines_that_share_a_folder_have_libraries_of_their_own(asked, monkeypatch):
    monkeypatch.setattr(build, "_build", lambda tools, recipe, target: target)
    first = next(build.libraries(torch.float32))
    monkeypatch.setattr(f"{build.__name__}.{asked}", lambda: "another")
    assert next(build.libraries(torch.float32)) != first


def test_compilers_are_asked_in_english(tmp_path, monkeypatch):
    cc = program(tmp_path, "cc", f'test "$LC_ALL" = C || exit 1; exec {gcc()} "$@"')
    monkeypatch.setenv("CC", str(cc))
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    assert next(build._toolchains()).compiler == (str(cc),)


def test_where_torch_brings_no_openmp_the_one_it_has_loaded_is_found(tmp_path, monkeypatch):
    monkeypatch.setattr(torch, "__file__", str(tmp_path / "__init__.py"))
    found = build._openmp()
    assert found.is_file() and "omp" in found.name


def test_elsewhere_than_on_linux_there_is_none(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    assert "built on Linux, and this is darwin" in str(native.why_not(torch.float32))


def test_a_library_that_lacks_a_function_is_replaced(cache, tmp_path):
    path = next(build.libraries(torch.float32))
    whole = path.read_bytes()
    (tmp_path / "empty.c").write_text("int nothing;\n")
    command = [gcc(), "-shared", "-fPIC", str(tmp_path / "empty.c"), "-o", str(path)]
    subprocess.run(command, check=True)
    path.write_bytes(path.read_bytes() + build._digest(path.read_bytes()))
    assert native.why_not(torch.float32) is None and normalizes()
    assert path.stat().st_size > len(whole) // 2
