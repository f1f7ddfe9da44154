"""Random networks: a program of drawn steps that call, read and ask for modules that were drawn."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize

import isonorm

CHANNELS = 4


class Doubled(nn.Module):
    """A parametrization."""

    def forward(self, weight):
        return 2 * weight


class Branch(nn.Module):
    """Runs a module where torch.fx cannot follow."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x):
        return self.module(x) if x.sum() > -1e30 else x


class ReadingBranch(Branch):
    """Reads what the module holds, too."""

    def forward(self, x):
        y = super().forward(x)
        return y if _of(self.module, "weight") is None else y * self.module.weight.mean()


class HeldBranch(nn.Module):
    """Runs a module that it holds in a list, where torch.fx cannot follow."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.modules_held = [module]

    def forward(self, x):
        return self.modules_held[0](x) if x.sum() > -1e30 else x


class NormAct(nn.BatchNorm2d):
    """As timm's."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        self.drop, self.act = nn.Identity(), nn.SiLU()

    def forward(self, x):
        return self.act(self.drop(super().forward(x)))


def _conv(**options) -> nn.Module:
    options = {"kernel_size": 3, "padding": 1, **options}
    return nn.Conv2d(CHANNELS, CHANNELS, **options)


def _parametrized(module: nn.Module) -> nn.Module:
    return parametrize.register_parametrization(module, "weight", Doubled())


LAYERS: dict[str, Callable[[], nn.Module]] = {
    "conv": _conv,
    "point": lambda: _conv(kernel_size=1, padding=0),
    "no bias": lambda: _conv(kernel_size=1, padding=0, bias=False),
    "groups": lambda: _conv(groups=2),
    "transposed": lambda: nn.ConvTranspose2d(CHANNELS, CHANNELS, 3, padding=1),
    "weight_norm": lambda: parametrizations.weight_norm(_conv()),
    "spectral_norm": lambda: parametrizations.spectral_norm(_conv(kernel_size=1, padding=0)),
    "doubled": lambda: _parametrized(_conv()),
    "equi": lambda: isonorm.EquiConv2d(CHANNELS, CHANNELS, 3, padding=1),
}
NORMS: dict[str, Callable[[], nn.Module]] = {
    "batch": lambda: nn.BatchNorm2d(CHANNELS),
    "no affine": lambda: nn.BatchNorm2d(CHANNELS, affine=False),
    "untracked": lambda: nn.BatchNorm2d(CHANNELS, track_running_stats=False),
    "group": lambda: nn.GroupNorm(2, CHANNELS),
    "act": lambda: NormAct(CHANNELS),
    "iter": lambda: isonorm.IterNorm(CHANNELS, group_size=2),
    "dbn": lambda: isonorm.DBN(CHANNELS, act="relu"),
    "doubled": lambda: _parametrized(nn.BatchNorm2d(CHANNELS)),
}


def _scripted() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return torch.jit.script(nn.Sequential(nn.Conv2d(4, CHANNELS, 1), nn.BatchNorm2d(CHANNELS)))


OTHERS: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "inplace": lambda: nn.ReLU(inplace=True),
    "silu": nn.SiLU,
    "drop": nn.Dropout,
    "identity": nn.Identity,
    "block": lambda: nn.Sequential(_conv(), nn.BatchNorm2d(CHANNELS), nn.ReLU(inplace=True)),
    "scripted": _scripted,
}


def _hooked(module: nn.Module) -> None:
    module.register_forward_hook(lambda m, args, out: out + 0.1)


def _pre_hooked(module: nn.Module) -> None:
    module.register_forward_pre_hook(lambda m, args: None)


def _frozen(module: nn.Module) -> None:
    isonorm.freeze(module)


BRANCHES = {"branch": Branch, "reading branch": ReadingBranch, "held branch": HeldBranch}
MARKS = {"hook": _hooked, "pre-hook": _pre_hooked, "frozen": _frozen}


def _of(module: nn.Module, name: str) -> Any:
    return getattr(module, name, None)


def _functional_norm(norm: Any, x: Tensor) -> Tensor:
    if getattr(norm, "running_var", None) is None:
        return x
    return F.batch_norm(x, norm.running_mean, norm.running_var, norm.weight, norm.bias)


def _functional_conv(layer: Any, x: Tensor) -> Tensor:
    if _of(layer, "groups") is None:
        return x
    return F.conv2d(x, layer.weight, padding="same", groups=layer.groups)


#: What code may read of a norm or a layer beside calling it.
READS: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "functional norm": _functional_norm,
    "functional conv": _functional_conv,
    "weight": lambda m, x: x if _of(m, "weight") is None else x * (1 + m.weight.mean()),
    "bias": lambda m, x: x - 1 if _of(m, "bias") is None else x + m.bias.sum(),
    "parameters": lambda m, x: x + sum(p.mean() for p in m.parameters()),
    "state": lambda m, x: x + sum(v.double().mean() for v in m.state_dict().values()),
    "mean": lambda m, x: x if _of(m, "running_mean") is None else x + m.running_mean.mean(),
    "float": lambda m, x: x if _of(m, "running_var") is None else x * float(m.running_var.sum()),
    "eps": lambda m, x: x * (1 + getattr(m, "eps", 0)),
    "class": lambda m, x: 2 * x if isinstance(m, nn.BatchNorm2d | nn.Conv2d) else x,
    "affine": lambda m, x: x * 2 if getattr(m, "affine", False) else x,
    "shape": lambda m, x: x if _of(m, "weight") is None else x * m.weight.shape[0],
    "training": lambda m, x: x * 2 if m.training else x,
    "channels": lambda m, x: x * getattr(m, "num_features", 1),
}


class Step(NamedTuple):
    """One line of a forward: ``kind`` with a module and one or two earlier values, by number."""

    kind: str
    module: int = 0
    first: int = 0
    second: int = 0


class Network(nn.Module):
    """Runs its steps on named modules; the output is the sum of the values that nothing used."""

    def __init__(self, modules: list[nn.Module], steps: list[Step], nested: bool) -> None:
        super().__init__()
        if nested:
            self.inside = nn.Module()
        for number, module in enumerate(modules):
            (self.inside if nested else self).add_module(f"m{number}", module)
        self.steps, self.nested = steps, nested

    def module(self, number: int) -> nn.Module:
        return getattr(self.inside if self.nested else self, f"m{number}")

    def forward(self, x):
        values, used = [x], set()
        for step in self.steps:
            first, second = step.first % len(values), step.second % len(values)
            used |= {first}
            module, a = self.module(step.module), values[-1 - first]
            if step.kind == "call":
                values.append(module(a))
            elif step.kind == "keyword":
                values.append(module(input=a))
            elif step.kind == "add":
                values.append(a + values[-1 - second])
            elif step.kind == "augment":
                a = a * 1
                b = module(a)
                a += 1
                values.append(a + b)
            elif step.kind == "relu_":
                values.append(a.relu_() if first < len(values) - 1 else a.relu())
            else:
                values.append(READS[step.kind](module, a))
        return values[-1] + values[-min(3, len(values))]


def _chain(draw) -> tuple[list[nn.Module], list[Step]]:
    """Draw layers, norms and activations in the order in which networks have them, so that norms
    can be merged.
    """
    modules: list[nn.Module] = []
    steps: list[Step] = []
    for _ in range(draw(st.integers(1, 3))):
        for kinds in (LAYERS, NORMS, OTHERS):
            if draw(st.integers(0, 5)):
                modules.append(kinds[draw(st.sampled_from(sorted(kinds)))]())
                call = "keyword" if draw(st.booleans()) else "call"
                named_x = isinstance(modules[-1], NormAct)
                steps.append(Step("call" if named_x else call, len(modules) - 1))
    return modules or [_conv()], steps


def _share(draw, modules: list[nn.Module]) -> None:
    """Give a module the weight of another one."""
    numbers = st.integers(0, len(modules) - 1)
    giver, taker = modules[draw(numbers)], modules[draw(numbers)]
    weight, own = dict(giver.named_parameters()).get("weight"), _of(taker, "weight")
    fits = weight is not None and own is not None and own.shape == weight.shape
    if fits and giver is not taker and not parametrize.is_parametrized(taker):
        taker.weight = weight


@st.composite
def networks(draw) -> Network:
    """Draw a network in float64, in eval, its norms with statistics of their own."""
    torch.manual_seed(draw(st.integers(0, 2**16)))
    modules, steps = _chain(draw)
    more = st.builds(
        Step,
        st.sampled_from(["call", "add", "augment", "relu_", *READS]),
        st.integers(0, len(modules) - 1), st.integers(0, 2), st.integers(0, 4),
    )  # fmt: skip
    for step in draw(st.lists(more, max_size=3)):
        steps.insert(draw(st.integers(0, len(steps))), step)
    for mark in draw(st.lists(st.sampled_from([*MARKS, *BRANCHES, "share", "list"]), max_size=2)):
        number = draw(st.integers(0, len(modules) - 1))
        if mark == "share":
            _share(draw, modules)
        elif mark in BRANCHES:
            steps = [
                step._replace(kind="call") if step.module == number and step.kind == "keyword"
                else step for step in steps
            ]  # fmt: skip
            modules.append(BRANCHES[mark](modules[number]))
            steps.append(Step("call", len(modules) - 1))
        elif mark == "list":
            modules[draw(st.integers(0, len(modules) - 1))].held = [modules[number]]
        elif not isinstance(modules[number], torch.jit.ScriptModule):  # it takes no hooks
            MARKS[mark](modules[number])
    return _lived_in(Network(modules, steps, draw(st.booleans())).double())


def _lived_in(network: Network) -> Network:
    frozen = [m for m in network.modules() if "train" in vars(m)]
    with torch.no_grad():
        for module in network.modules():
            if getattr(module, "running_mean", None) is not None:
                module.running_mean.normal_()
            if isinstance(getattr(module, "running_var", None), Tensor):
                module.running_var.uniform_(0.5, 2)
            for parameter in module.parameters(recurse=False):
                parameter += 0.2 * torch.randn_like(parameter)
        if not frozen:
            network.train()(torch.randn(8, CHANNELS, 4, 4, dtype=torch.float64))
    return network.eval()
