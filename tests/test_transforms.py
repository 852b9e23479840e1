"""Stitches: what they map, how they start, what they refuse."""

import pytest
import torch

import vectors
from raystitch import names
from raystitch.cards import CutCard
from raystitch.errors import CellError
from raystitch.stitching import transforms
from raystitch.stitching.transforms import (
    Stitch,
    images_for_lstsq,
    start_identity,
    start_lstsq,
    start_random,
)

VECTORS = vectors.load()["least_squares_init"]


def cut(kind, *shape):
    return CutCard(1, f"{kind}-{shape}", kind, tuple(shape), 0)


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def lstsq(front_cut, end_cut, front, end, batch=3, dtype=torch.float64):
    stitch = Stitch(front_cut, end_cut, dtype)
    start_lstsq(stitch, zip(front.split(batch), end.split(batch), strict=True))
    return stitch


@pytest.mark.parametrize(
    ("case", "kind"), list(zip(VECTORS, ["map", "tokens", "vector"], strict=True))
)
@pytest.mark.parametrize("batch", [1, 3, 100])
def test_lstsq_gives_the_reference_weights_whatever_the_batches(case, kind, batch):
    front, end = vectors.tensor(case["front"]), vectors.tensor(case["end"])
    stitch = lstsq(cut(kind, *front.shape[1:]), cut(kind, *end.shape[1:]), front, end, batch)
    assert (
        stitch.weight.detach().float().allclose(vectors.tensor(case["weight"]), atol=1e-5, rtol=0)
    )
    assert stitch.bias.detach().float().allclose(vectors.tensor(case["bias"]), atol=1e-5, rtol=0)


SHAPES = {
    "map": ("map", (4, 3, 3)),
    "map_last": ("map_last", (3, 3, 4)),
    "tokens": ("tokens", (5, 4)),
    "vector": ("vector", (4,)),
}


@pytest.mark.parametrize("name", SHAPES)
def test_lstsq_recovers_an_invertible_mixing_folded_into_one_half(name):
    kind, shape = SHAPES[name]
    front = draw(40, *shape)
    mixing, shift = draw(4, 4, seed=1), draw(4, seed=2)
    axis = "nchw,oc->nohw" if kind == "map" else "n...c,oc->n...o"
    end = torch.einsum(axis, front, mixing)
    end = end + (shift[:, None, None] if kind == "map" else shift)
    stitch = lstsq(cut(kind, *shape), cut(kind, *shape), front, end)
    assert stitch.weight.detach().allclose(mixing, atol=1e-10)
    assert stitch.bias.detach().allclose(shift, atol=1e-10)
    assert stitch(front).allclose(end, atol=1e-10)


def test_lstsq_recovers_a_mixing_between_channels_first_and_last():
    front = draw(20, 3, 4, 4)
    mixing = draw(5, 3, seed=1)
    end = torch.einsum("nchw,oc->nhwo", front, mixing)
    stitch = lstsq(cut("map", 3, 4, 4), cut("map_last", 4, 4, 5), front, end)
    assert stitch.weight.detach().allclose(mixing, atol=1e-10)
    assert stitch(front).allclose(end, atol=1e-10)


def test_lstsq_with_a_dead_channel_takes_the_solution_of_least_norm():
    front = draw(30, 4)
    front[:, 2] = 0
    end = front @ draw(4, 3, seed=1)
    stitch = lstsq(cut("vector", 4), cut("vector", 3), front, end)
    assert stitch(front).allclose(end, atol=1e-10)
    assert stitch.weight[:, 2].abs().max() < 1e-10


def test_lstsq_refuses_to_interpolate():
    front = draw(5, 4)
    with pytest.raises(CellError, match="5 rows for 5 unknowns"):
        lstsq(cut("vector", 4), cut("vector", 3), front, front[:, :3])


def test_a_map_is_resized_before_the_convolution():
    stitch = Stitch(cut("map", 2, 4, 4), cut("map", 3, 2, 2), torch.float64)
    start_random(stitch, torch.Generator().manual_seed(0))
    x = draw(5, 2, 4, 4)
    # Halving with align_corners false is the mean of each 2×2 block.
    pooled = x.reshape(5, 2, 2, 2, 2, 2).mean((3, 5))
    expected = torch.einsum("nchw,oc->nohw", pooled, stitch.weight) + stitch.bias[:, None, None]
    assert stitch(x).allclose(expected, atol=1e-12)


def test_tokens_share_one_map_the_class_token_included():
    stitch = Stitch(cut("tokens", 5, 4), cut("tokens", 5, 3), torch.float64)
    start_random(stitch, torch.Generator().manual_seed(0))
    x = draw(2, 5, 4)
    for token in range(5):
        assert stitch(x)[:, token].allclose(x[:, token] @ stitch.weight.T + stitch.bias)


@pytest.mark.parametrize("name", SHAPES)
def test_identity_start_returns_its_input(name):
    kind, shape = SHAPES[name]
    stitch = Stitch(cut(kind, *shape), cut(kind, *shape), torch.float64)
    start_identity(stitch)
    assert torch.equal(stitch(draw(2, *shape)), draw(2, *shape))


def test_identity_start_refuses_unequal_shapes():
    with pytest.raises(CellError, match="equal shapes"):
        start_identity(Stitch(cut("vector", 4), cut("vector", 3)))


def test_random_start_is_the_layers_own_and_follows_its_generator():
    made = []
    for seed in (0, 0, 1):
        stitch = Stitch(cut("vector", 400), cut("vector", 300))
        start_random(stitch, torch.Generator().manual_seed(seed))
        made.append(stitch.weight.detach())
    assert torch.equal(made[0], made[1])
    assert not torch.equal(made[0], made[2])
    torch.manual_seed(0)
    own = torch.nn.Linear(400, 300).weight.detach()
    assert made[0].abs().max() == pytest.approx(float(own.abs().max()), rel=1e-3)
    assert made[0].std() == pytest.approx(float(own.std()), rel=0.02)


REFUSED = [
    (a, b) for a in names.KINDS for b in names.KINDS if a != b and {a, b} != {"map", "map_last"}
]


@pytest.mark.parametrize(("front", "end"), REFUSED)
def test_mixed_kinds_are_refused_by_name(front, end):
    with pytest.raises(CellError, match=f"a {front} .* cannot be stitched to a {end}"):
        Stitch(cut(*SHAPES[front][:1], *SHAPES[front][1]), cut(*SHAPES[end][:1], *SHAPES[end][1]))


def test_unequal_token_counts_are_refused():
    with pytest.raises(CellError, match=r"5 tokens .* 6 tokens"):
        Stitch(cut("tokens", 5, 4), cut("tokens", 6, 4))


def test_the_least_squares_start_draws_more_images_where_rows_are_few():
    wide = cut("vector", 128)
    assert images_for_lstsq(wide, wide, 500, 10_000) == 1290
    assert images_for_lstsq(wide, wide, 500, 800) == 800
    assert images_for_lstsq(cut("map", 64, 4, 4), cut("map", 64, 4, 4), 500, 10_000) == 500


def test_the_starts_are_those_that_users_write():
    assert set(transforms.INITS) == set(names.INITS)
