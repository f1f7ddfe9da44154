"""Tests of ``normalize`` run by the reference, by plain torch and by what a user gets."""

from __future__ import annotations

import pytest

import isonorm


@pytest.fixture(params=["reference", "torch", "auto"])
def backend(request):
    with isonorm.backend(request.param):
        yield request.param
