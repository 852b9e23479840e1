"""Protocols: nothing but which inputs a stitch is trained on."""

import numpy as np

from raystitch import names
from raystitch.stitching.protocols import PROTOCOLS, noise_images


def test_the_protocols_are_those_that_users_write():
    assert tuple(PROTOCOLS) == names.PROTOCOLS
    unlabelled = {name for name, rule in PROTOCOLS.items() if not rule.labelled}
    assert unlabelled == names.UNLABELLED_PROTOCOLS
    of_iris = {n for n, rule in PROTOCOLS.items() if rule.inputs in ("front", "untrained")}
    assert of_iris == names.IRI_PROTOCOLS
    assert {n for n, rule in PROTOCOLS.items() if rule.real} == names.ONE_SIDED_PROTOCOLS


def test_noise_is_uniform_and_each_image_its_own():
    index = np.arange(400)
    noise = noise_images(index, (3, 8, 8), 0)
    counts = np.bincount(noise.ravel(), minlength=256)
    expected = noise.size / 256
    chi_square = ((counts - expected) ** 2 / expected).sum()
    assert 160 < chi_square < 370  # 255 degrees of freedom: 1e-5 on either side
    assert np.array_equal(noise_images(index[7:9], (3, 8, 8), 0), noise[7:9])
    assert not np.array_equal(noise_images(index, (3, 8, 8), 1), noise)
    assert len(np.unique(noise.reshape(400, -1), axis=0)) == 400
