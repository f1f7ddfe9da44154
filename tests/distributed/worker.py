"""One rank of a distributed test: a program that runs the tasks it is sent, one after the other.

``python -m tests.distributed.worker FD`` reads them from the pipe with file descriptor FD. A task
names a function of ``tasks.py``; it runs inside a gloo process group made for it alone, on one
thread, with warnings as errors, and its result or its traceback goes back through the pipe. The
process ends with the pipe.
"""

from __future__ import annotations

import pickle
import sys
import traceback
import warnings
from datetime import timedelta
from multiprocessing.connection import Connection

import torch
import torch.distributed as dist

from tests.distributed import tasks


def run(task: dict) -> object:
    dist.init_process_group(
        "gloo",
        init_method=f"file://{task['rendezvous']}",
        rank=task["rank"],
        world_size=task["world_size"],
        timeout=timedelta(seconds=task["timeout"]),
    )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            return getattr(tasks, task["function"])(*task["arguments"], **task["keywords"])
    finally:
        dist.destroy_process_group()


def main() -> None:
    torch.set_num_threads(1)
    connection = Connection(int(sys.argv[1]))
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


if __name__ == "__main__":
    main()
