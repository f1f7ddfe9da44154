"""The lab's data in the official formats, and its plain terminal."""

from __future__ import annotations

from tests.lab.conftest import _plain_output as _plain_output
from tests.lab.conftest import official as official
