"""Tests of ``normalize`` run by the reference and by the explicit path."""

from __future__ import annotations

import pytest

import isonorm


@pytest.fixture(params=["reference", "torch"])
def backend(request):
    with isonorm.backend(request.param):
        yield request.param
