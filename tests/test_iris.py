"""IRIs: each image alone decides its pixels, residuals are honest, rules follow closed forms."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from raystitch import names
from raystitch.data.images import LabelledImages
from raystitch.errors import CellError
from raystitch.settings import Iris
from raystitch.stitching.iris import IRI_RULES, null_residuals, synthesise

CPU = torch.device("cpu")


def iri(**fields):
    """Settings that run all their steps unless a tolerance is given."""
    return Iris(**{"tolerance": 0.0, **fields})


def front(seed=0):
    torch.manual_seed(seed)
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, 2, 1), nn.ReLU()
    )
    return net.eval().requires_grad_(False)


def images(count=20, side=8, seed=0):
    rng = np.random.default_rng(seed)
    return LabelledImages(
        rng.integers(0, 256, (count, 3, side, side), dtype=np.uint8),
        rng.integers(0, 3, count),
        np.arange(count) + 100,
    )


def relative(net, made, real):
    with torch.no_grad():
        a, b = (net(torch.from_numpy(x).float() / 255).flatten(1) for x in (made, real))
    return ((a - b).norm(dim=1) / b.norm(dim=1)).numpy()


def test_the_rules_are_those_that_users_write():
    assert tuple(IRI_RULES) == names.IRI_RULES


@pytest.mark.parametrize(
    "rule", [iri(steps=30, batch=8), iri(rule="sign", lr=0.02, steps=30, batch=8)]
)
def test_iris_come_near_at_the_cut_and_residuals_are_those_of_the_stored_pixels(rule):
    net, real = front(), images()
    made = synthesise(net, real, rule, 0, CPU)
    far = synthesise(net, real, rule.model_copy(update={"steps": 1}), 0, CPU)
    assert made.residual.mean() < 0.5 * far.residual.mean()
    assert made.residual == pytest.approx(relative(net, made.images.images, real.images), abs=1e-6)
    assert np.abs(made.images.images.astype(int) - real.images).mean() > 20
    assert np.array_equal(made.images.labels, real.labels)
    assert np.array_equal(made.images.index, real.index)
    assert (made.steps == 30).all()


@pytest.mark.parametrize("tolerance", [0.0, 0.3])
def test_shard_size_changes_no_pixel(tolerance):
    net, real = front(), images()
    settings = iri(steps=25, batch=8, tolerance=tolerance)
    whole = synthesise(net, real, settings, 3, CPU)
    for size in (1, 3, 7, 11):
        parts = [
            synthesise(net, real.select(slice(at, at + size)), settings, 3, CPU)
            for at in range(0, len(real), size)
        ]
        pixels = np.concatenate([part.images.images for part in parts])
        assert np.array_equal(pixels, whole.images.images)
        assert np.array_equal(np.concatenate([part.steps for part in parts]), whole.steps)


def test_another_seed_or_index_gives_another_image():
    net, real, settings = front(), images(4), iri(steps=3, batch=4)
    first = synthesise(net, real, settings, 0, CPU).images.images
    assert not np.array_equal(first, synthesise(net, real, settings, 1, CPU).images.images)
    moved = replace(real, index=real.index + 1)
    shifted = synthesise(net, moved, settings, 0, CPU).images.images
    assert not np.array_equal(first, shifted)


def test_images_that_meet_the_tolerance_stop_early_and_meet_it():
    net, real = front(), images()
    made = synthesise(net, real, iri(steps=400, batch=8, tolerance=0.2), 0, CPU)
    early = made.steps < 400
    assert early.any()
    # Rounding to uint8 moves an image by at most half a grey level.
    assert (made.residual[early] < 0.25).all()


def test_the_best_iterate_is_never_worse_than_the_last():
    net, real = front(), images()
    rule = iri(rule="sign", lr=0.2, steps=15, batch=8)
    last = synthesise(net, real, rule, 0, CPU)
    best = synthesise(net, real, rule.model_copy(update={"keep": "best"}), 0, CPU)
    assert (best.residual <= last.residual + 0.02).all()
    assert best.residual.mean() < last.residual.mean()


def test_adam_equals_torchs_adam():
    net, real = front(), images(4)
    steps = 6
    made = synthesise(net, real, iri(lr=0.03, steps=steps, batch=4), 0, CPU).images.images
    zero = synthesise(net, real, iri(lr=1e-9, steps=1, batch=4), 0, CPU).images.images
    x = (torch.from_numpy(zero).float() / 255).requires_grad_()
    optimiser = torch.optim.Adam([x], lr=0.03)
    with torch.no_grad():
        target = net(torch.from_numpy(real.images).float() / 255).flatten(1)
    for _ in range(steps):
        optimiser.zero_grad()
        ((net(x).flatten(1) - target).norm(dim=1) / target.norm(dim=1)).sum().backward()
        optimiser.step()
        with torch.no_grad():
            x.clamp_(0, 1)
    # The start here was rounded to uint8; paths stay within a few grey levels.
    assert np.abs(made.astype(int) - (x.detach() * 255).round().numpy()).mean() < 3


def test_sign_steps_follow_the_closed_form_on_a_linear_front():
    weight = torch.tensor([0.5, -2.0, 0.25]).repeat_interleave(4)

    def linear(x):
        return (x.flatten(1) * weight).sum(1, keepdim=True)

    real = LabelledImages(
        np.full((1, 3, 2, 2), 255, np.uint8) * np.array([1, 0, 1], np.uint8)[None, :, None, None],
        np.zeros(1, np.int64),
        np.zeros(1, np.int64),
    )
    settings = iri(rule="sign", lr=0.1, steps=20, batch=2)
    made = synthesise(linear, real, settings, 0, CPU)
    # Every start lies below the target, so each pixel walks to its bound along its weight's sign.
    assert np.array_equal(made.images.images, real.images)
    assert made.residual[0] == 0


def test_rounding_is_nearest_and_truncation_is_a_setting():
    net, real = front(), images(6)
    nearest, truncated = (
        synthesise(net, real, iri(steps=4, batch=8, rounding=rounding), 0, CPU).images.images
        for rounding in ("nearest", "truncate")
    )
    difference = nearest.astype(int) - truncated
    assert set(np.unique(difference)) == {0, 1}
    assert 0.3 < difference.mean() < 0.7


def test_a_zero_activation_is_an_error():
    def dead(x):
        return x.flatten(1) * 0

    with pytest.raises(CellError, match="image 100 is zero"):
        synthesise(dead, images(3), iri(steps=2, batch=4), 0, CPU)


def test_null_residual_is_the_distance_to_the_nearest_other_of_the_class():
    net, real = front(), images(12)
    real = replace(real, labels=np.array([0] * 5 + [1] * 6 + [2]))
    with torch.no_grad():
        rows = net(torch.from_numpy(real.images).float() / 255).flatten(1).numpy()
    found = null_residuals(net, real, np.array([2, 7, 11]), 4, CPU)
    for value, position in zip(found[:2], (2, 7), strict=True):
        others = [
            np.linalg.norm(rows[j] - rows[position])
            for j in range(12)
            if j != position and real.labels[j] == real.labels[position]
        ]
        assert value == pytest.approx(min(others) / np.linalg.norm(rows[position]), rel=1e-5)
    assert np.isnan(found[2])
