"""Sequences of what users do to a BatchNorm, done to torch's layer and to the equal ones here."""

from __future__ import annotations

import copy
import pickle
import warnings
from typing import Any

import hypothesis.strategies as st
import torch
from hypothesis import given
from torch import nn

import isonorm
from isonorm import area

from .beside_torch import BUFFERS, Call, Pair, refuses

DTYPES = st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.float16])
MODES = ("grad", "grad", "no_grad", "inference_mode", "autocast", "functional_call")
EQUALS = (
    "batchnorm", "normalize", "groups", "whiten", "iternorm", "zca", "pca", "cholesky", "polar"
)  # fmt: skip
POSITIONS = [
    (nn.BatchNorm1d, ()),
    (nn.BatchNorm1d, (1,)),
    (nn.BatchNorm1d, (5,)),
    (nn.BatchNorm2d, (2, 3)),
    (nn.BatchNorm3d, (2, 1, 3)),
]
CALLS = st.builds(
    Call,
    batch=st.sampled_from([4, 3, 2, 1, 0]),
    scale=st.sampled_from([1.0, 0.01, 30.0, 0.0]),
    mean=st.sampled_from([0.0, 1.0, -100.0]),
    dtype=DTYPES,
    mode=st.sampled_from(MODES),
    strided=st.booleans(),
    step=st.booleans(),
)
OPERATIONS: dict[str, tuple[Any, ...]] = {
    "forward": (CALLS,),
    "forward_again": (CALLS,),  # twice as often as the rest
    "wrong_input": (st.sampled_from(["channels", "rank", "integers", "list", "complex"]),),
    "train": (st.booleans(),),
    "set": (
        st.one_of(
            st.tuples(st.just("momentum"), st.sampled_from([None, 0.0, 0.1, 0.7, 1.0])),
            st.tuples(st.just("track_running_stats"), st.booleans()),
            st.tuples(st.just("eps"), st.sampled_from([1e-5, 1e-2, 1.0])),
        ),
    ),
    "cast": (DTYPES,),
    "duplicate": (st.booleans(),),
    "visit_meta": (),
    "reset": (st.sampled_from(["reset_running_stats", "reset_parameters"]),),
    "load": (st.sampled_from([None, *BUFFERS, "weight"]), st.booleans(), st.booleans()),
    "take_away": (st.sampled_from(["all", "as_torch", "running_var", "num_batches_tracked"]),),
    "give_back": (),
    "edit": (st.sampled_from([*BUFFERS]), st.sampled_from(["fill", "mul", "data"])),
    "replace_parameter": (st.sampled_from(["weight", "bias"]), st.sampled_from(["new", "none"])),
    "requires_grad": (st.sampled_from(["all", "weight", "bias"]), st.booleans()),
}
SEQUENCES = st.lists(
    st.one_of([st.tuples(st.just(name), *drawn) for name, drawn in OPERATIONS.items()]),
    min_size=1,
    max_size=14,
)


@given(
    equal=st.sampled_from(EQUALS),
    shape=st.sampled_from(POSITIONS),
    channels=st.integers(1, 5),
    affine=st.booleans(),
    track=st.sampled_from([True, True, False]),
    sequence=SEQUENCES,
)
def test_batchnorm(equal, shape, channels, affine, track, sequence):
    """Attacks the state of layers; the oracle is nn.BatchNorm in float64 after every operation."""
    torch_class, positions = shape
    ours = _build(equal, channels, affine, track)
    theirs = torch_class(channels, affine=affine, track_running_stats=track)
    pair = Pair(ours, theirs, positions)
    pair.assign([pair.rounded(channels) for _ in pair.parameters()])
    for name, *arguments in sequence:
        ACTS[name](pair, *arguments)
        pair.check_state()


def _build(equal: str, channels: int, affine: bool, track: bool) -> nn.Module:
    """Return a layer that equals BatchNorm."""
    if equal == "batchnorm":
        return isonorm.BatchNorm(channels, affine=affine, track_running_stats=track)
    if equal == "iternorm":
        return isonorm.IterNorm(channels, group_size=1, affine=affine, track_running_stats=track)
    parts = {
        "normalize": {},
        "groups": {"area": area.batch(2), "operation": "standardize"},
        "whiten": {"area": area.batch(1), "operation": "whiten"},
    }.get(equal)
    if parts is not None:
        recovery = "affine" if affine else None
        return isonorm.Normalize(channels, track_running_stats=track, recovery=recovery, **parts)
    options = {"affine": affine, "track_running_stats": track}
    return isonorm.DBN(channels, group_size=1, method=equal, **options)


def wrong_input(pair: Pair, kind: str) -> None:
    """Both refuse it, and ours stays as it was."""
    x = torch.randn(4, pair.theirs.num_features, *pair.positions)
    wrong = {
        "channels": torch.cat([x, x], 1),
        "rank": x[0, 0] if pair.positions == () else x.reshape(-1),
        "integers": x.long(),
        "list": x.tolist(),
        "complex": x.to(torch.complex64),
    }[kind]
    before = copy.deepcopy(pair.theirs)
    if kind != "channels":
        refuses(pair.theirs, wrong)
    refuses(pair.ours, wrong)
    pair.theirs = before


def train(pair: Pair, mode: bool) -> None:
    pair.theirs.train(mode)
    pair.ours.train(mode)


def set_attribute(pair: Pair, value: tuple[str, Any]) -> None:
    for layer in (pair.theirs, pair.ours):
        setattr(layer, *value)


def cast(pair: Pair, dtype: torch.dtype) -> None:
    """Cast ours; round torch's parameters and statistics as ours are."""
    pair.dtype = dtype
    pair.ours = pair.ours.to(dtype)
    for parameter in pair.theirs.parameters():
        parameter.data = parameter.data.to(dtype).double()


def duplicate(pair: Pair, pickled: bool) -> None:
    copied = (lambda m: pickle.loads(pickle.dumps(m))) if pickled else copy.deepcopy
    pair.theirs, pair.ours = copied(pair.theirs), copied(pair.ours)


def visit_meta(pair: Pair) -> None:
    """Take ours to meta, call it there, and bring it back with its state."""
    state, training = pair.ours.state_dict(), pair.ours.training
    layer = copy.deepcopy(pair.ours).to("meta")
    x = torch.empty(4, pair.theirs.num_features, *pair.positions, device="meta")
    if pair.is_whole:
        y = layer.eval()(x)
        assert y.is_meta and y.shape == x.shape
    layer = layer.to_empty(device="cpu").train(training)
    layer.load_state_dict(state)
    pair.ours = layer


def reset(pair: Pair, method: str) -> None:
    """Reset both; what torch's layer misses, it gets for as long."""
    layer, channels = pair.theirs, pair.theirs.num_features
    missing = [name for name, tensor in layer._buffers.items() if tensor is None]
    untouched = layer.track_running_stats and {"running_mean", "running_var"} <= {*missing}
    weightless = layer.affine and layer.weight is None
    count = layer.num_batches_tracked
    if untouched:
        layer.running_mean, layer.running_var = torch.zeros(channels), torch.ones(channels)
    if "num_batches_tracked" in missing or untouched:
        layer.num_batches_tracked = torch.tensor(0)
    if weightless:
        layer.weight = nn.Parameter(torch.ones(channels))
    before = copy.deepcopy(layer)
    if isinstance(pair.both(lambda layer: getattr(layer, method)())[0], Exception):
        pair.theirs = layer = before
    if weightless:
        layer.weight = None
    if untouched:
        layer.running_mean = layer.running_var = None
    if "num_batches_tracked" in missing or untouched:
        layer.num_batches_tracked = count


def load(pair: Pair, missing: str | None, strict: bool, assign: bool) -> None:
    """Load a copy of the state into the changed layer; an entry may be missing."""

    def act(layer: nn.Module) -> list[str]:
        state = copy.deepcopy(layer.state_dict())
        state.pop(BUFFERS.get(missing, missing) if layer is pair.ours else missing, None)
        with torch.no_grad():
            for tensor in (*layer.parameters(), *layer.buffers()):
                tensor.fill_(3)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "the state dict is of other norms")
            keys = layer.load_state_dict(state, strict=strict, assign=assign)
        assert not keys.unexpected_keys
        return [key.replace("running_cov", "running_var") for key in keys.missing_keys]

    if missing == "running_var" and pair.theirs.running_var is None:
        return
    theirs, ours = pair.both(act)
    assert isinstance(theirs, Exception) or theirs == ours


def take_away(pair: Pair, which: str) -> None:
    """Set buffers to None: by their names, or as code for torch's layers does."""
    for theirs, ours in BUFFERS.items():
        if which in (theirs, "all"):
            setattr(pair.theirs, theirs, None)
            setattr(pair.ours, ours, None)
    if which == "as_torch":
        for layer in (pair.theirs, pair.ours):
            layer.running_mean = layer.running_var = layer.num_batches_tracked = None
        del pair.ours.running_var


def give_back(pair: Pair) -> None:
    """Put new buffers in place of those that were taken away."""
    channels, wide = pair.theirs.num_features, torch.float32
    if not hasattr(pair.ours, "_num_means"):  # made without
        return
    fresh = {
        "running_mean": torch.full((channels,), 0.5),
        "running_var": torch.full((channels,), 2.0),
        "num_batches_tracked": torch.tensor(7),
    }
    for name, value in fresh.items():
        if getattr(pair.theirs, name) is None:
            setattr(pair.theirs, name, value.double() if value.dtype == wide else value)
            shape = (channels, 1, 1) if name == "running_var" else value.shape
            setattr(pair.ours, BUFFERS[name], value.clone().view(shape))


def edit(pair: Pair, name: str, how: str) -> None:
    """Write to a buffer in place, also behind autograd's back."""
    for buffer in (getattr(pair.theirs, name), getattr(pair.ours, BUFFERS[name])):
        if buffer is None:
            continue
        if how == "fill":
            buffer.fill_(3)
        elif how == "mul":
            buffer.mul_(2)
        else:
            buffer[...] = 5
    pair.largest_mean, pair.largest_var = pair.largest_mean * 2 + 5, pair.largest_var * 2 + 5


def replace_parameter(pair: Pair, name: str, how: str) -> None:
    if pair.theirs._parameters[name] is None:
        return
    value = pair.rounded(pair.theirs.num_features)
    setattr(pair.theirs, name, None if how == "none" else nn.Parameter(value))
    setattr(
        pair.ours, name, None if how == "none" else nn.Parameter(value.to(pair.dtype, copy=True))
    )


def requires_grad(pair: Pair, which: str, value: bool) -> None:
    for layer in (pair.theirs, pair.ours):
        for name, parameter in layer.named_parameters():
            if which in (name, "all"):
                parameter.requires_grad_(value)


ACTS = {
    "forward": Pair.forward,
    "forward_again": Pair.forward,
    "wrong_input": wrong_input,
    "train": train,
    "set": set_attribute,
    "cast": cast,
    "duplicate": duplicate,
    "visit_meta": visit_meta,
    "reset": reset,
    "load": load,
    "take_away": take_away,
    "give_back": give_back,
    "edit": edit,
    "replace_parameter": replace_parameter,
    "requires_grad": requires_grad,
}
