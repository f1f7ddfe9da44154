"""Areas: the table of design choices, partitions with a remainder, and views that copy nothing."""

from __future__ import annotations

import pytest
import torch

from isonorm import area as areas
from isonorm.area import AREAS, Area, Block, resolve

# area, input (N, C, S), and (b, d, m) of each block as the survey's table gives them
TABLE = {
    "batch, all channels": (areas.batch(), (4, 6, 5), [(1, 6, 20)]),
    "batch, groups of 3": (areas.batch(3), (4, 6, 5), [(2, 3, 20)]),
    "batch, a shorter last group": (areas.batch(4), (4, 6, 5), [(1, 4, 20), (1, 2, 20)]),
    "batch, group_size above C": (areas.batch(64), (4, 6, 5), [(1, 6, 20)]),
    "instance, all channels": (areas.instance(), (4, 6, 5), [(4, 6, 5)]),
    "instance, a shorter last group": (areas.instance(4), (4, 6, 5), [(4, 4, 5), (4, 2, 5)]),
    "layer": (areas.layer(), (4, 6, 5), [(4, 1, 30)]),
    "group": (areas.group(3), (4, 6, 5), [(4, 3, 10)]),
    "batch_group": (areas.batch_group(3), (4, 6, 5), [(1, 3, 40)]),
    "position": (areas.position(), (4, 6, 5), [(20, 1, 6)]),
}


@pytest.fixture(params=TABLE.values(), ids=TABLE.keys())
def row(request) -> tuple[Area, tuple[int, int, int], list[tuple[int, int, int]]]:
    return request.param


@pytest.fixture
def x() -> torch.Tensor:
    """Every element its own index, so that a misplaced one shows."""
    return torch.arange(4 * 6 * 5).view(4, 6, 5).double()


def test_problem_shapes_follow_the_survey(row):
    area, (n, c, s), expected = row
    assert [area.problem_shape(block, n, s) for block in area.partition(c)] == expected


def test_blocks_cover_every_channel_once(row):
    area, (_, c, _), _ = row
    covered = [channel for block in area.partition(c) for channel in range(c)[block.channels]]
    assert covered == list(range(c))


@pytest.mark.parametrize("num_channels", [1, 7, 16, 17, 40, 48])
@pytest.mark.parametrize("group_size", [1, 5, 16, 64, None])
def test_groups_are_equal_except_the_last_which_takes_the_rest(num_channels, group_size):
    blocks = areas.batch(group_size).partition(num_channels)
    sizes = [block.size for block in blocks for _ in range(block.groups)]
    size = num_channels if group_size is None else min(group_size, num_channels)
    full, rest = divmod(num_channels, size)
    assert sizes == [size] * full + [rest] * (rest > 0)
    assert len(blocks) <= 2


def test_gather_then_scatter_is_the_identity(row, x):
    area, (_, c, _), shapes = row
    for block, shape in zip(area.partition(c), shapes, strict=True):
        view = block.view(x)
        problems = area.gather(view)
        assert problems.shape == shape
        assert torch.equal(area.scatter(problems, view), view)


def test_gather_puts_together_what_the_table_says(x):
    assert torch.equal(areas.batch(3).gather(Block(0, 2, 3).view(x))[1, 2], x[:, 5].reshape(-1))
    assert torch.equal(areas.instance(3).gather(Block(0, 2, 3).view(x))[3, 1], x[1, 4])
    assert torch.equal(areas.layer().gather(Block(0, 1, 6).view(x))[2, 0], x[2].reshape(-1))
    assert torch.equal(areas.group(3).gather(Block(0, 3, 2).view(x))[2, 1], x[2, 2:4].reshape(-1))
    batch_group = areas.batch_group(3).gather(Block(0, 3, 2).view(x))
    assert torch.equal(batch_group[0, 2], x[:, 4:6].reshape(-1))
    assert torch.equal(areas.position().gather(Block(0, 1, 6).view(x))[7, 0], x[1, :, 2])


def test_featurewise_makes_every_feature_a_problem(row, x):
    area, (n, c, s), shapes = row
    for block, (b, d, m) in zip(area.partition(c), shapes, strict=True):
        alone = area.featurewise()
        assert alone.problem_shape(block, n, s) == (b * d, 1, m)
        together = area.gather(block.view(x)).reshape(b * d, 1, m)
        assert torch.equal(alone.gather(block.view(x)), together)


def test_statistic_shape_broadcasts_over_the_view(row, x):
    area, (_, c, _), shapes = row
    for block, (b, d, m) in zip(area.partition(c), shapes, strict=True):
        view = block.view(x)
        shape = area.statistic_shape(view.shape)
        assert torch.Size(shape).numel() == b * d
        means = area.gather(view).mean(-1)
        spread = means.reshape(shape).expand_as(view)
        assert torch.equal(area.gather(spread), means.unsqueeze(-1).expand(b, d, m))


@pytest.mark.parametrize(
    "memory_format", [torch.contiguous_format, torch.channels_last], ids=["NCHW", "channels_last"]
)
def test_views_share_the_input_memory(row, memory_format):
    area, _, _ = row
    x = torch.randn(4, 6, 5, 3).contiguous(memory_format=memory_format)
    for block in area.partition(6):
        view = block.view(x.flatten(2))
        assert view.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
        view.zero_()
    assert x.count_nonzero() == 0


def test_per_channel_lines_up_with_the_view():
    vector = torch.arange(6.0)
    x = vector.view(1, 6, 1).expand(4, 6, 5)
    for block in areas.batch(4).partition(6):
        assert torch.equal(block.per_channel(vector).expand_as(block.view(x)), block.view(x))


def test_areas_say_what_they_can_do():
    spanning = {name for name, make in AREAS.items() if _made(make).spans_batch}
    whitening = {name for name, make in AREAS.items() if _made(make).whitens}
    assert spanning == {"batch", "batch_group"}
    assert whitening == {"batch", "instance", "group"}


def _made(make) -> Area:
    return make(2) if make in (areas.group, areas.batch_group) else make()


def test_repr_reads_like_the_call():
    made = [areas.batch(16), areas.batch(), areas.layer(), areas.group(8), areas.position()]
    assert list(map(repr, made)) == [
        "batch(group_size=16)",
        "batch()",
        "layer()",
        "group(num_groups=8)",
        "position()",
    ]


def test_resolve_takes_a_name_or_an_area():
    assert resolve("batch") == areas.batch()
    assert resolve(areas.group(4)) == areas.group(4)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: areas.batch(0), "group_size must be a positive integer, or None"),
        (lambda: areas.batch(2.0), "group_size must be a positive integer, or None"),
        (lambda: areas.instance(True), "got True"),
        (lambda: areas.group(-1), "num_groups must be a positive integer; got -1"),
        (lambda: areas.group(None), "num_groups must be a positive integer; got None"),
        (lambda: areas.group(5).partition(48), "num_groups=5 does not divide num_features=48"),
        (lambda: resolve("group"), r"isonorm\.area\.group\(num_groups="),
        (lambda: resolve("bath"), "one of batch, layer.*got 'bath'"),
        (lambda: resolve(3), "got 3"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_wrong_arguments_are_explained(call, message):
    with pytest.raises(ValueError, match=message):
        call()
