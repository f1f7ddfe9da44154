"""Settings of hypothesis for the fuzzers: a short, repeatable slice under pytest, and much more in
``make fuzz``, see ``run.py``.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from hypothesis import HealthCheck, Phase, register_random, settings

_COMMON = settings(database=None, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("slice", _COMMON, max_examples=15, derandomize=True)
settings.register_profile("fuzz", _COMMON, phases=(Phase.generate, Phase.target, Phase.shrink))


class TorchGenerator:
    """torch's default generator, as hypothesis asks for one that it seeds for every example."""

    seed = staticmethod(torch.default_generator.manual_seed)
    getstate = staticmethod(torch.default_generator.get_state)
    setstate = staticmethod(torch.default_generator.set_state)


TORCH_GENERATOR = TorchGenerator()  # hypothesis keeps no reference of its own
register_random(TORCH_GENERATOR)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Iterator[None]:
    """Give this folder's fuzzers the slice: a function takes the profile of its definition."""
    before = settings.get_current_profile_name()
    settings.load_profile("slice")
    try:
        return (yield)
    finally:
        settings.load_profile(before)
