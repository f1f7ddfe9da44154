from __future__ import annotations

import numpy as np
import pytest
import torch

from isonorm.lab.data import FlipAndCrop


def one_by_one(images: torch.Tensor, draws: torch.Tensor, augment: FlipAndCrop) -> np.ndarray:
    """Each image padded, cut out and mirrored by itself, with numpy."""
    p, results = augment.padding, []
    for image, (top, left, mirror) in zip(images.numpy(), draws.tolist(), strict=True):
        mode = "constant" if augment.border == "zero" else "reflect"
        padded = np.pad(image, ((0, 0), (p, p), (p, p)), mode=mode)
        top, left = (int(draw * (2 * p + 1)) for draw in (top, left))
        cut = padded[:, top : top + image.shape[1], left : left + image.shape[2]]
        results.append(cut[:, :, ::-1] if augment.flip and mirror >= 0.5 else cut)
    return np.stack(results)


@pytest.mark.parametrize("border", ["zero", "reflect"])
@pytest.mark.parametrize("flip", [True, False])
@pytest.mark.parametrize("padding", [0, 1, 4])
@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 9, 6)])
def test_a_batch_is_augmented_as_its_images_one_by_one(border, flip, padding, shape):
    augment = FlipAndCrop(padding=padding, flip=flip, border=border)
    images, draws = torch.randn(64, *shape), torch.rand(64, augment.num_draws)
    expected = one_by_one(images, draws, augment)
    np.testing.assert_array_equal(augment(images, draws).numpy(), expected)


def test_images_in_channels_last_give_the_same():
    augment = FlipAndCrop()
    images, draws = torch.randn(8, 3, 16, 16), torch.rand(8, 3)
    result = augment(images.to(memory_format=torch.channels_last), draws)
    assert torch.equal(result, augment(images, draws))


def test_every_offset_is_equally_likely():
    image = torch.arange(9.0).view(1, 1, 3, 3) + 1
    draws = torch.rand(9000, 3, generator=torch.Generator().manual_seed(1))
    middles = FlipAndCrop(padding=1, flip=False)(image.expand(9000, 1, 3, 3), draws)[:, 0, 1, 1]
    counts = middles.long().bincount(minlength=10)[1:]
    assert counts.sum() == 9000 and ((counts - 1000).abs() < 150).all()  # five deviations


def test_the_largest_draw_stays_within_the_image():
    draws = torch.full((1, 3), 1.0).nextafter(torch.zeros(()))
    for padding in range(1, 40):
        image = torch.ones(1, 1, 80, 80)
        cropped = FlipAndCrop(padding=padding)(image, draws)  # gather refuses an index outside
        # the crop begins `padding` pixels in, so that as many rows and columns are border
        assert cropped.sum() == (80 - padding) ** 2


@pytest.mark.parametrize(
    ("options", "sentence"),
    [({"padding": -1}, "number of pixels; got -1"), ({"border": "wrap"}, "got 'wrap'")],
)
def test_impossible_augmentations_are_refused(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        FlipAndCrop(**options)
