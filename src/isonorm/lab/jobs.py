"""Several trainings at once, each in a process of its own on the same device.

A small network leaves most of a GPU, or of a CPU with many cores, idle. The processes live as long
as the run and read the data once each. They train, and write checkpoints and weights; which
training is next, and what becomes of its result, is decided here.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
import threading
import traceback
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

import torch

from .comparison import count
from .experiment import Experiment, Trial, do
from .progress import Bar, Progress
from .train import Epoch, Result

_SECONDS_TO_STOP = 10.0  # then a process is killed


class WorkerLost(RuntimeError):
    """A process ended before its training did; the message is a sentence for the user."""


@dataclass
class _Worker:
    process: BaseProcess
    pipe: Connection
    trial: Trial | None = None  # None: it waits for one
    bar: Bar | None = None


def side_by_side(
    experiment: Experiment, progress: Progress
) -> Generator[tuple[Trial, Result], None, None]:
    """Each training with its result as it ends, ``experiment.machine.jobs`` of them at once. One
    that a search decides on begins when the results it depends on have been added.
    """
    workers = _start(experiment)
    try:
        while True:
            _hand_out(experiment, workers, progress)
            busy = {worker.pipe: worker for worker in workers if worker.trial is not None}
            if not busy:
                break
            for pipe in wait(list(busy)):
                worker = busy[pipe]  # type: ignore[index]
                message = _receive(experiment, worker)
                assert worker.trial is not None and worker.bar is not None
                if isinstance(message, Epoch):
                    worker.bar.epoch(message)
                    continue
                trial, worker.trial = worker.trial, None
                yield trial, message
                worker.bar.finish(message)
    finally:
        _stop(workers)


def _start(experiment: Experiment) -> list[_Worker]:
    """As many processes as there can be trainings at once."""
    context = get_context("spawn")  # CUDA does not survive a fork
    workers: list[_Worker] = []
    task = replace(experiment, results={})
    with _ctrl_c_ignored():  # it reaches every process of a terminal, and is for this one alone
        for _ in range(min(experiment.machine.jobs, len(experiment.epochs_left))):
            here, there = context.Pipe()
            process = context.Process(target=_work, args=(task, there))
            process.start()
            there.close()  # so that the end of the process is the end of the pipe
            workers.append(_Worker(process, here))
    return workers


def _hand_out(experiment: Experiment, workers: list[_Worker], progress: Progress) -> None:
    """Gives those who wait the next trainings that can begin."""
    taken = {*experiment.results, *(worker.trial for worker in workers)}
    open_ = (trial for trial in experiment.trials() if trial not in taken)
    for worker in workers:
        if worker.trial is None and (trial := next(open_, None)) is not None:
            epochs = experiment.recipe[trial.name].at(trial.point).plan.epochs
            worker.trial = trial
            worker.bar = progress.start(trial.label(experiment.recipe), epochs)
            _send(experiment, worker)


def _send(experiment: Experiment, worker: _Worker) -> None:
    try:
        worker.pipe.send(worker.trial)
    except OSError as error:
        raise _lost(experiment, worker) from error


def _receive(experiment: Experiment, worker: _Worker) -> Epoch | Result:
    try:
        message = worker.pipe.recv()
    except (EOFError, OSError) as error:
        raise _lost(experiment, worker) from error
    if isinstance(message, MemoryError):
        raise _lost(experiment, worker, f"ran out of memory ({message})")
    if isinstance(message, BaseException):
        raise message
    return message


def _lost(experiment: Experiment, worker: _Worker, what: str | None = None) -> WorkerLost:
    assert worker.trial is not None
    if what is None:
        worker.process.join(_SECONDS_TO_STOP)
        code = worker.process.exitcode or 0
        what = f"was ended by signal {-code}" if code < 0 else f"ended with exit status {code}"
        what += ", as where memory runs out" * (code == -signal.SIGKILL)
    command = "compare" if experiment.comparison else "run"
    return WorkerLost(
        f"the process that trained {worker.trial.label(experiment.recipe)} {what}: "
        f"{count(len(experiment.results), 'training')} finished, and isonorm {command} --resume "
        f"{experiment.folder} --jobs {max(1, experiment.machine.jobs // 2)} goes on, with fewer "
        "at once."
    )


def _stop(workers: list[_Worker]) -> None:
    """Shuts down idle processes and terminates those that train: their checkpoints are complete."""
    with _ctrl_c_ignored():  # a second one would leave processes behind that train on
        for worker in workers:
            if worker.trial is not None:
                worker.process.terminate()
            else:
                with suppress(OSError):  # it is gone already
                    worker.pipe.send(None)
        for worker in workers:
            worker.process.join(_SECONDS_TO_STOP)
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()
            worker.pipe.close()


@contextmanager
def _ctrl_c_ignored() -> Iterator[None]:
    """In the block, and as long as they live by the processes that are started in it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _work(experiment: Experiment, pipe: Connection) -> None:
    """The life of a process: training after training, until there are no more."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # closing files on the way
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        data, fabric = experiment.read_data(), experiment.machine.launch()
        with experiment.machine.settings():
            while (trial := _next(pipe)) is not None:
                pipe.send(do(experiment, trial, data, fabric, on_epoch=pipe.send))
    except torch.OutOfMemoryError as error:
        pipe.send(MemoryError(str(error).partition(". ")[0]))
    except Exception as error:
        error.add_note(f"In the process that trained:\n{traceback.format_exc()}")
        with suppress(OSError):  # it may be that nobody is left to be told
            pipe.send(_portable(error))


def _portable(error: Exception) -> Exception:
    """An error that can travel: itself, or where it holds on to what cannot, its words."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        plain = RuntimeError(f"{type(error).__name__}: {error}")
        plain.__notes__ = error.__notes__
        return plain
    return error


def _next(pipe: Connection) -> Trial | None:
    """What to train next; None also where nobody is left to ask."""
    try:
        return pipe.recv()
    except EOFError:
        return None


def _end_with_parent() -> None:
    """Nobody is left to hear of a result, and a resumed run trains the same: stop at once."""
    parent = parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
