"""One rank of a distributed test: a process that runs the tasks it is sent, one after the other.

A task names a function of a module. It runs inside a gloo process group made for it alone, or kept
from the task before, on one thread, with warnings as errors, and its result or its traceback goes
back through the pipe it came from. The process ends with the pipe.
"""

from __future__ import annotations

import os
import pickle
import traceback
import warnings
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path

import torch
import torch.distributed as dist


def run(task: dict) -> object:
    if task["new"]:
        leave()
        dist.init_process_group(
            "gloo",
            init_method=f"file://{task['rendezvous']}",
            rank=task["rank"],
            world_size=task["world_size"],
            timeout=timedelta(seconds=task["timeout"]),
        )
        dist.barrier()  # no rank leaves while another is still connecting to it
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            return task["function"](*task["arguments"], **task["keywords"])
    finally:
        if not task["keep"]:
            leave()


def leave() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


def main(connection: Connection, log: Path) -> None:
    """What the process says, gloo for one, goes to the log."""
    with open(log, "ab") as file:
        for standard in (1, 2):
            os.dup2(file.fileno(), standard)
    torch.set_num_threads(1)
    while True:
        try:
            task = pickle.loads(connection.recv_bytes())
        except EOFError:
            return
        try:
            reply = ("result", run(task))
        except Exception:
            reply = ("error", traceback.format_exc())
        connection.send_bytes(pickle.dumps(reply))
