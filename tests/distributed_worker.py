"""One rank of a distributed test: a script that runs the functions it is sent, one after the other.

``python distributed_worker.py FD TEST_FILE`` reads tasks from the pipe with file descriptor FD. A
task names a function of TEST_FILE; it runs inside a gloo process group made for it alone, on one
thread, with warnings as errors, and its result or its traceback goes back through the pipe. The
process ends with the pipe.
"""

from __future__ import annotations

import importlib.util
import pickle
import sys
import traceback
import warnings
from datetime import timedelta
from multiprocessing.connection import Connection
from types import ModuleType

import torch
import torch.distributed as dist


def load(path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location("functions_of_a_rank", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def run(module: ModuleType, task: dict) -> object:
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
            return getattr(module, task["function"])(*task["arguments"], **task["keywords"])
    finally:
        dist.destroy_process_group()


def main() -> None:
    torch.set_num_threads(1)
    connection, module = Connection(int(sys.argv[1])), load(sys.argv[2])
    while True:
        try:
            task = pickle.loads(connection.recv_bytes())
        except EOFError:
            return
        try:
            reply = ("result", run(module, task))
        except Exception:
            reply = ("error", traceback.format_exc())
        connection.send_bytes(pickle.dumps(reply))


if __name__ == "__main__":
    main()
