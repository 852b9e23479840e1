"""Random views: closed forms, the caller's generator alone, no pixel from nowhere."""

import pytest
import torch

from raystitch import names
from raystitch.zoo.augment import AUGMENTS, PADDING, augment


def drawn(seed=0):
    return torch.Generator().manual_seed(seed)


def images(count=64, side=9):
    return torch.rand(count, 3, side, side, generator=drawn(5))


def test_every_named_kind_is_there():
    assert tuple(AUGMENTS) == names.AUGMENTS


def test_none_is_the_images():
    given = images()
    assert augment(given, "none", drawn()) is given


@pytest.mark.parametrize("kind", ["flip_crop", "flip_resized_crop"])
def test_a_view_follows_from_the_generator_alone(kind):
    before = torch.random.get_rng_state()
    first, again, other = (augment(images(), kind, drawn(seed)) for seed in (1, 1, 2))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert first.shape == images().shape
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert first.min() >= 0
    assert first.max() <= 1


def test_flip_crop_is_a_crop_of_the_image_or_its_mirror():
    given = images()
    seen = set()
    for image, view in zip(given, augment(given, "flip_crop", drawn()), strict=True):
        found = None
        for mirrored in (False, True):
            source = image.flip(2) if mirrored else image
            framed = torch.zeros(3, 9 + 2 * PADDING, 9 + 2 * PADDING)
            framed[:, PADDING:-PADDING, PADDING:-PADDING] = source
            for top in range(2 * PADDING + 1):
                for left in range(2 * PADDING + 1):
                    if torch.equal(framed[:, top : top + 9, left : left + 9], view):
                        found = (mirrored, top, left)
        assert found is not None
        seen.add(found)
    assert {mirrored for mirrored, _, _ in seen} == {True, False}
    assert {top for _, top, _ in seen} == set(range(9)) == {left for _, _, left in seen}


def test_flip_resized_crop_takes_parts_of_every_share():
    ramp = torch.arange(32.0).div(31).expand(2000, 3, 32, 32)
    views = augment(ramp, "flip_resized_crop", drawn())
    width = (views[:, 0, 16, -1] - views[:, 0, 16, 0]).abs()
    mirrored = views[:, 0, 16, -1] < views[:, 0, 16, 0]
    assert 0.45 < mirrored.double().mean() < 0.55
    # The width of a part is sqrt(share × ratio): between sqrt(0.08 × 3/4) and the whole.
    assert width.min() > 0.15
    assert width.max() > 0.95
    assert 0.6 < width.mean() < 0.75
