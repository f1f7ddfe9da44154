"""What torch is set to while a machine works, and where its processes meet."""

from __future__ import annotations

import errno
import socket
import warnings

import pytest
import torch
from lightning_fabric import Fabric

from isonorm.lab.machine import Machine


@pytest.mark.parametrize(
    ("device", "precision", "products"),
    [
        ("cuda", "bf16", "high"),
        ("cuda:1", "bf16", "high"),
        ("cuda", "float32", "highest"),
        ("cpu", "bf16", "highest"),
    ],
)
def test_products_in_float32_take_tf32_beside_bfloat16_on_a_gpu(device, precision, products):
    assert torch.get_float32_matmul_precision() == "highest"
    with Machine(device=device, precision=precision, threads=torch.get_num_threads()).settings():
        assert torch.get_float32_matmul_precision() == products
    assert torch.get_float32_matmul_precision() == "highest"


def test_settings_come_back_after_an_error():
    machine = Machine(device="cuda", precision="bf16", threads=torch.get_num_threads() + 1)
    threads = torch.get_num_threads()
    with pytest.raises(KeyError), machine.settings():
        raise KeyError
    assert torch.get_float32_matmul_precision() == "highest"
    assert torch.get_num_threads() == threads


@pytest.mark.skipif(not hasattr(torch.backends, "fp32_precision"), reason="since torch 2.9")
def test_a_precision_set_by_torchs_newer_interface_is_left_alone():
    """Asked by the older one, torch would raise."""
    products = torch.backends.cuda.matmul
    before = products.fp32_precision
    products.fp32_precision = "tf32"
    try:
        with Machine(threads=torch.get_num_threads()).settings():
            assert products.fp32_precision == "tf32"
    finally:
        products.fp32_precision = before
    assert torch.get_float32_matmul_precision() == "highest", "as it was, for what comes after"


def test_who_asked_for_float32_is_not_advised_to_leave_it():
    advice = (
        "TensorFloat32 tensor cores for float32 matrix multiplication available but not enabled."
    )
    with Machine(device="cuda", threads=torch.get_num_threads()).settings():
        warnings.warn(advice, stacklevel=1)  # the tests make every other warning an error
        with pytest.raises(UserWarning, match="something else"):
            warnings.warn("something else", stacklevel=1)


def test_the_port_where_processes_meet_is_held_from_its_choice(monkeypatch):
    """Another program asks for it while the processes start, which takes seconds."""
    taken = []

    def start(fabric: Fabric) -> None:
        port = fabric.strategy.cluster_environment.main_port
        with socket.socket() as other, pytest.raises(OSError) as refused:
            other.bind(("127.0.0.1", port))
        taken.append(refused.value.errno)

    for name in ("MASTER_PORT", "LOCAL_RANK"):
        monkeypatch.setenv(name, "0")  # so that what is set below is undone
        monkeypatch.delenv(name)
    monkeypatch.setattr(Fabric, "launch", start)
    Machine(devices=2).launch()
    assert taken == [errno.EADDRINUSE]
