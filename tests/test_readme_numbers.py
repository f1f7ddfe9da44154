"""The numbers in the README's prose are those of the records: a new record changes both."""

from __future__ import annotations

import json
import math
from math import ceil, prod
from pathlib import Path
from statistics import geometric_mean

import pytest

ROOT = Path(__file__).parent.parent
README = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
LARGE = 100e6  # bytes of an activation
CONVOLUTION = "'cudnn' convolution"


def record(name: str) -> dict:
    return json.loads((ROOT / "records" / name).read_text(encoding="utf-8"))


def us(row: dict, layer: str) -> float:
    return row[layer]["us"]


def best_batchnorm(row: dict) -> float:
    return min(us(row, "bn_eager"), us(row, "bn_compiled"))


def is_large(row: dict) -> bool:
    return 2 * prod(row["shape"]) > LARGE  # bfloat16


def row_of_the_table(layout: str) -> list[str]:
    """The cells of one column, in the order of the table's rows."""
    rows = [row for row in record("gpu-bfloat16.json")["rows"] if row["layout"] == layout]
    to_best = [us(row, "iternorm") / best_batchnorm(row) for row in rows]
    to_floor = [us(row, "iternorm") / row["floor_us"] for row in rows if is_large(row)]
    extra = {True: 0.0, False: 0.0}
    for row in rows:
        more = row["iternorm"]["peak"] / row["bn_eager"]["peak"] - 1
        extra[is_large(row)] = max(extra[is_large(row)], more)
    eager = geometric_mean(us(row, "iternorm") / us(row, "bn_eager") for row in rows)
    return [
        f"{eager:.2f} ×",
        f"{geometric_mean(to_best):.2f} ×",
        f"{max(to_best):.2f} ×",
        f"{min(to_floor):.2f} to {max(to_floor):.2f} ×",
        *(f"at most {ceil(1e3 * extra[large]) / 10:.1f} %" for large in (True, False)),
    ]


def test_the_table_of_the_gpu():
    columns = [row_of_the_table(layout) for layout in ("channels_last", "nchw")]
    for left, right in zip(*columns, strict=True):
        assert f"| {left} | {right} |" in README
    worst = [column[2].removesuffix(" ×") for column in columns]
    together = " ".join(README.split())
    assert f"takes {worst[0]} times as long as the faster of eager and compiled" in together
    assert f"in channels_last, {worst[1]} times in NCHW" in together


def test_other_times_on_the_gpu():
    rows = record("gpu-float32-high.json")["rows"]
    ratios = [us(row, "iternorm") / us(row, "bn_eager") for row in rows]
    assert (
        f"is {geometric_mean(ratios):.2f} × eager BatchNorm, at worst {max(ratios):.2f} ×" in README
    )
    small, large = (
        [us(row, "dbn") / us(row, "iternorm") for row in record(f"gpu-dbn{size}.json")["rows"]]
        for size in (16, 64)
    )
    assert f"DBN takes {min(small):.2f} to {max(small):.2f} times as long" in README
    assert f"and {min(large):.2f} to {max(large):.2f} times in [groups of 64]" in README


def test_times_beside_a_convolution():
    found = record("iternorm2019-supp-table1/result.json")["summary"]
    means = {row["configuration"]: row["device_milliseconds"]["mean"] for row in found}
    (norm, convolution), (wide, wide_convolution) = (
        [f"{means[f'{name}, d = {d}']:.2f}" for name in ("IterNorm-iter5", CONVOLUTION)]
        for d in (64, 128)
    )
    assert f"takes {norm} ms where cuDNN takes {convolution} ms at d = 64" in README
    assert f"and {wide} where it takes {wide_convolution} at d = 128" in README


def test_resnet50():
    rates = record("resnet50.json")["images_per_second"]

    def share(mode: str, kind: str) -> str:
        return f"{rates[f'{mode} {kind}'] / rates[f'{mode} batchnorm']:.2f}"

    assert f"{share('eager', 'iternorm')} × BatchNorm's rate eager" in README
    assert f"({share('eager', 'iternorm, fused')} × with" in README
    compiled, fused = share("compiled", "iternorm"), share("compiled", "iternorm, fused")
    assert f"at {compiled} × compiled ({fused} × fused)" in README
    modes = [f"compiled {kind}" for kind in ("batchnorm", "iternorm", "iternorm, fused")]
    steps = [256 / rates[mode] * 1e3 for mode in modes]
    host = record("resnet50.json")["host_milliseconds_a_step"]
    launches = [host[mode] for mode in modes]
    assert f"Compiled, a step takes {min(steps):.0f} to {max(steps):.0f} ms" in README
    assert f"The host takes {min(launches):.0f} to {max(launches):.0f} ms to launch" in README


def test_networks():
    words = {7: "seven", 9: "nine", 11: "all eleven"}
    rows = record("networks.json")["rows"]
    readme = README.replace("\n", " ")
    measured = {size: {r["network"] for r in rows if r["size"] == size} for size in (224, 128)}
    assert ("The record is partial" in readme) == any(
        len(names) < 11 for names in measured.values()
    )
    for size in (224, 128):
        ratios = {r["network"]: r["ratios"]["iternorm"] for r in rows if r["size"] == size}
        mean = math.exp(sum(map(math.log, ratios.values())) / len(ratios))
        slowest = min(ratios, key=ratios.__getitem__)
        assert f"{words[len(ratios)]} networks train at {mean:.2f} ×" in readme
        assert f"the slowest ({slowest}) at {ratios[slowest]:.2f} ×" in readme


def test_times_beside_the_plain_algorithm_on_a_gpu():
    (exact,), (tf32,) = (
        record(f"gpu-plain-{precision}.json")["rows"] for precision in ("highest", "high")
    )
    looped, batched, quick_looped, quick_batched = (
        f"{us(row, f'plain_{kind}') / us(row, 'iternorm'):.1f} times"
        for row in (exact, tf32)
        for kind in ("looped", "batched")
    )
    assert f"IterNorm is {looped} as fast as the paper's algorithm in plain torch" in README
    assert f"and {batched} as fast as with the groups in batched products" in README
    assert f"TF32 products {quick_looped.removesuffix(' times')} and {quick_batched}" in README
    limit = us(tf32, "plain_looped") / tf32["floor_us"]
    assert f"would be {limit:.1f} times as fast as the loop with TF32" in README


def test_epochs_of_vgg():
    results = record("cifar10-epochs.json")["results"]
    seconds = results["BatchNorm, torch's"]["seconds"]["median"]
    groups, dbn, whole = (
        f"{results[name]['ratio']:.2f}"
        for name in ("IterNorm, groups of 64", "DBN, groups of 16", "IterNorm, all channels")
    )
    assert f"takes {seconds:.2f} s with torch's BatchNorm, {groups} × that" in README
    assert f"{dbn} × with DBN in groups of 16, and {whole} × with IterNorm over all" in README


def test_the_cpu():
    layers: dict[bool, list[dict]] = {True: [], False: []}  # of the two shapes of a network, in
    for case in record("cpu.json")["cases"]:  # groups of 16 and 64; and of the others
        usual = case["shape"] in ([32, 64, 56, 56], [32, 256, 14, 14]) and case["group_size"] <= 64
        layers[usual].append(case["layers"])

    def ratios(usual: bool, layer: str = "isonorm.IterNorm") -> list[dict]:
        return [of[layer]["time_ratios"] for of in layers[usual] if layer in of]

    def gains(cases: list[dict]) -> list[float]:
        return [1 / case[kind]["median"] for case in cases for kind in case if kind != "BatchNorm"]

    def costs(cases: list[dict]) -> list[float]:
        return [case["BatchNorm"]["median"] for case in cases]

    first, others = ratios(True), ratios(False)
    assert len(first) == 4
    gain, cost = gains(first), costs(first)
    assert f"IterNorm is {min(gain):.1f} to {max(gain):.1f} times as fast as the plain" in README
    assert f"{min(gains(others)):.1f} to {max(gains(others)):.0f} times as fast" in README
    assert f"It takes {min(cost):.1f} to {max(cost):.1f} times as long as BatchNorm" in README
    assert f"There IterNorm takes {min(cost):.1f} times BatchNorm's time at best" in README
    assert (
        f"in the other cases {min(costs(others)):.0f} to {max(costs(others)):.0f} times" in README
    )

    in_torch = "the same in torch"
    slower = [
        of[in_torch]["time"]["median"] / of["isonorm.IterNorm"]["time"]["median"]
        for of in layers[True] + layers[False]
        if in_torch in of
    ]
    assert f"plain torch takes {min(slower):.1f} to {max(slower):.1f} times as long" in README
    gain, rest = gains(ratios(True, in_torch)), gains(ratios(False, in_torch))
    assert f"it is {min(gain):.1f} to {max(gain):.1f} times as fast as the plain" in README
    assert f"{min(rest):.2f} to {max(rest):.0f} times in the other cases" in README


@pytest.mark.parametrize(
    ("folder", "better", "worse"),
    [
        ("iternorm2019-fig3", ("IterNorm, full batch", 4), ("BN, full batch", 3)),
        ("dbn2018-fig3", ("DBN", 5), ("BN", 4)),
    ],
)
def test_the_losses_of_the_opening(folder, better, worse):
    found = {row["configuration"]: row for row in record(f"{folder}/result.json")["summary"]}
    low, high = (
        f"{found[name]['train_loss']['mean']:.{digits}f}" for name, digits in (better, worse)
    )
    assert f"[{low} where BatchNorm's is {high}](records/{folder}/result.json)" in README


def test_the_errors_of_the_opening():
    def errors(folder: str) -> dict[str, str]:
        rows = record(f"{folder}/result.json")["summary"]
        return {row["configuration"]: f"{100 * row['test_error']['mean']:.2f} %" for row in rows}

    vgg, resnet = errors("iternorm2019-fig6"), errors("dbn2018-table1")
    assert (
        f"[{vgg['DBN, base']} with DBN and {vgg['IterNorm, base']} with IterNorm, "
        f"where BatchNorm has {vgg['BN, base']}]" in README
    )
    assert f"[{resnet['DBN-scale-L1, Res-56']} where it has {resnet['Baseline, Res-56']}]" in README
    assert min(resnet[name] for name in resnet if "20" in name) == resnet["Baseline, Res-20"]
