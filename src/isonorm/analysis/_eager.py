"""Keeping torch.compile's code from running while a monitor's hooks stand."""

from __future__ import annotations

import sys
import threading
from typing import Any

import torch


class ForceEager:
    """The stance ``force_eager``, of which a process has one, for all who hold it at a time.

    The last to let go puts back what was found. Where somebody has taken another stance meanwhile,
    that one stays.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()  # the stance is the process's, whichever thread takes it
        self._holders = 0
        self._taken: list[Any] = []  # changes of stance that are to be put back

    def hold(self) -> None:
        with self._lock:
            taken = torch.compiler.set_stance("force_eager")
            self._holders += 1
            if self._find(taken.prev) is None:
                self._taken.append(taken)
            else:  # in force already
                taken.__exit__(None, None, None)

    def release(self) -> None:
        with self._lock:
            self._holders -= 1
            self.settle()

    def settle(self) -> None:
        """Puts back what can be. A stance that lies under somebody's ``with`` block comes to light
        when the block ends, so this is asked again later.
        """
        with self._lock:
            if self._taken and not self._holders:
                probe = torch.compiler.set_stance("default")  # which tells what is in force
                found = self._find(probe.prev)
                if found is None:
                    probe.__exit__(None, None, None)
                else:
                    found.__exit__(None, None, None)
                    self._taken.remove(found)

    def _find(self, stance: Any) -> Any:
        return next((taken for taken in self._taken if taken.stance is stance), None)


force_eager = ForceEager()


def compiler_is_loaded() -> bool:
    """Without it nothing is compiled, and its import takes seconds."""
    return "torch._dynamo" in sys.modules
