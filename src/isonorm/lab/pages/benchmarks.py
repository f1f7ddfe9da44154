"""Benchmarks' records, whatever their shape: where they come from, and their numbers as tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from . import parts
from .markup import Markup, element

#: What the benchmarks ask; one without a title here is shown under the name of its file.
_TITLES = {
    "cifar10-curves": "The kernels' loss curve on CIFAR-10 beside plain torch's",
    "cifar10-epochs": "Seconds an epoch on CIFAR-10, beside BatchNorm",
    "cpu": "A whitening layer's step on the CPU, beside the paper's algorithm and BatchNorm",
    "equinorm-balance": "Equilibrium: what positive and negative weights contribute",
    "equinorm-cost-cpu": "EquiConv2d beside convolution and BatchNorm, on the CPU",
    "equinorm-cost-cuda": "EquiConv2d beside convolution and BatchNorm, on a GPU",
    "folding": "ResNet-50 in inference, norms folded away",
    "gpu-bfloat16": "Whitening layers on a GPU, bfloat16",
    "gpu-dbn16": "DBN in groups of 16 on a GPU",
    "gpu-dbn64": "DBN in groups of 64 on a GPU",
    "gpu-float32-high": "Whitening layers on a GPU, float32",
    "gpu-plain-high": "IterNorm and the paper's algorithm in plain torch on a GPU, TF32",
    "gpu-plain-highest": "IterNorm and the paper's algorithm in plain torch on a GPU, float32",
    "mnist-large-batch": "Large batches of MNIST with LARS, LAMB and LANS",
    "mnist-normalizations": "Normalizations of activations and of weights on MNIST",
    "monitor": "What watching a network costs",
    "networks": "Training whole networks on a GPU, every BatchNorm converted",
    "resnet50": "Training ResNet-50 on a GPU",
    "warmstart": "A BatchNorm network converted: accuracy before and after fine-tuning",
}
#: A table with more columns is for programs to read; one with more rows is closed at first.
_MOST_COLUMNS, _OPEN_ROWS = 14, 10
_ORIGIN = ("command", "made", "hardware", "versions", "threads", "load_average", "arguments", "how")

_SIZES = {"case", "shape", "group_size"}

#: What is said of a record that its benchmark did not come to the end of.
CUT = "This measurement was cut short: the rows that it would have had at its end are missing."

Row = dict[str, str]


def section(name: str, content: Mapping[str, Any], anchor: str) -> Markup:
    """A short section about one benchmark."""
    passed = content.get("passed")
    numbers = {key: value for key, value in content.items() if key not in _ORIGIN}
    return parts.section(
        title(name),
        "" if passed is None else parts.paragraph(parts.badge("holds" if passed else "fails")),
        parts.paragraph(CUT) if content.get("complete") is False else "",
        *_tables(numbers),
        parts.details("How it was measured", parts.facts(_origin(name, content))),
        anchor=anchor,
        level=3,
    )


def title(name: str) -> str:
    return _TITLES.get(name, name)


def cell(value: Any) -> str | None:
    """A number, a word, a shape or a number with its spread; None for what is more than that.

    >>> cell({"median": 2.0, "lower": 1.5, "upper": 2.25, "n": 9}), cell([32, 64, 7, 7]), cell({})
    ('2 [1.5, 2.25]', '32×64×7×7', None)
    """
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (int, float)):
        return f"{value:.4g}" if isinstance(value, float) and abs(value) < 1e4 else f"{value:,.0f}"
    if isinstance(value, str):
        return value
    if isinstance(value, list) and value and all(isinstance(item, int) for item in value):
        return "×".join(map(str, value))
    if not isinstance(value, Mapping):
        return None
    if value.keys() >= {"median", "lower", "upper"}:
        return f"{value['median']:.4g} [{value['lower']:.4g}, {value['upper']:.4g}]"
    if value.keys() >= {"mean", "std"}:
        return f"{value['mean']:.4g} ± {value['std']:.2g}"
    if value.keys() == {"seeds", "spread"}:
        return cell(value["spread"]) or "never"
    return None


def _tables(content: Mapping[str, Any]) -> Iterator[Markup]:
    """Lists of cases, and dictionaries of them, as rows; what has one number for each name shares
    a table.
    """
    together: dict[str, Row] = {}
    for key, value in content.items():
        if isinstance(value, list) and value and all(isinstance(item, Mapping) for item in value):
            yield from _table(key, [_row(item) for item in value])
        elif isinstance(value, Mapping) and cell(value) is None:
            cells = {name: cell(item) for name, item in value.items()}
            if None in cells.values():
                yield from _table(
                    key, [{"case": name, **_row(item)} for name, item in value.items()]
                )
                continue
            for name, text in cells.items():
                together.setdefault(name, {"case": name})[key] = text or ""
    yield from _table("medians [quartiles], or numbers", list(together.values()))


def _table(caption: str, rows: list[Row]) -> Iterator[Markup]:
    """Unless it has nothing but names and sizes."""
    columns = list(dict.fromkeys(column for row in rows for column in row))
    words = 1
    while words < len(columns) and all(row.get(columns[words], "")[:1].isalpha() for row in rows):
        words += 1
    if set(columns) <= _SIZES:
        return
    caption = caption.replace("_", " ")
    headings = [column.replace("_", " ") for column in columns]
    lines = ([row.get(column, "") for column in columns] for row in rows)
    whole = parts.table(caption, headings, lines, words=words)
    closed = len(rows) > _OPEN_ROWS
    yield parts.details(f"{caption} ({len(rows)})", whole) if closed else whole


def _row(case: Any) -> Row:
    """A case's numbers under the names that lead to them, or, if they are too many, only those at
    the top; curves are left out.
    """
    found = dict(_flat(case))
    return found if len(found) <= _MOST_COLUMNS else dict(_flat(case, deep=False))


def _flat(value: Any, before: str = "", deep: bool = True) -> Iterator[tuple[str, str]]:
    for key, item in value.items() if isinstance(value, Mapping) else ():
        name = f"{before}{key}"
        found = cell(item)
        if found is not None:
            yield name, found
        elif deep:
            yield from _flat(item, f"{name}: ")


def _origin(name: str, content: Mapping[str, Any]) -> dict[str, str]:
    how = content.get("how", {})
    single = {
        key.replace("_", " "): text
        for key, value in content.items()
        if key not in (*_ORIGIN, "passed") and (text := cell(value)) is not None
    }
    return {
        "record": f"{name}.json",
        "command": element("code", content.get("command", "")) if "command" in content else "",
        "made": str(content.get("made", "")).replace("T", " ")[:16],
        **single,
        **{key: str(value) for key, value in content.get("hardware", {}).items()},
        **{key: str(value) for key, value in content.get("versions", {}).items()},
        "threads": str(content.get("threads", "")),
        **(how if isinstance(how, Mapping) else {"how": str(how)}),
    }
