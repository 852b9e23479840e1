"""Stitches: what they map, how they start, what they refuse."""

import dataclasses
import math

import numpy as np
import pytest
import torch

import vectors
from raystitch import names
from raystitch.cards import CutCard
from raystitch.errors import CellError
from raystitch.lstsq import images_for_lstsq, positions
from raystitch.stitching import transforms
from raystitch.stitching.transforms import (
    Stitch,
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


KINDS = {
    "map": ("map", (4, 3, 3)),
    "map_last": ("map_last", (6, 6, 4)),
    "patches": ("tokens", (9, 4)),
    "class token": ("tokens", (17, 4)),
    "vector": ("vector", (4,)),
}
PAIRS = [(front, end) for front in KINDS for end in KINDS]


def plain_alignment(x, front, end):
    """The table of docs/stitches.md, written out position by position: (n, positions, channels)."""
    kind, n = KINDS[front][0], len(x)
    side = {"map": 3, "map_last": 6, "patches": 3, "class token": 4}.get(front)
    if kind == "map":
        grid, first = x, x.mean((2, 3))
    elif kind == "map_last":
        grid, first = x.permute(0, 3, 1, 2), x.mean((1, 2))
    elif front == "patches":
        grid = torch.stack([x[:, 3 * row : 3 * row + 3] for row in range(3)], 1).permute(0, 3, 1, 2)
        first = x.mean(1)
    elif front == "class token":
        rows = [x[:, 1 + 4 * row : 5 + 4 * row] for row in range(4)]
        grid, first = torch.stack(rows, 1).permute(0, 3, 1, 2), x[:, 0]
    else:
        grid, first = x[:, :, None, None].expand(n, 4, 6, 6), x
    if end == "vector":
        return first[:, None]
    wanted = {"map": 3, "map_last": 6, "patches": 3, "class token": 4}[end]
    if side != wanted:
        grid = torch.nn.functional.interpolate(
            grid, size=(wanted, wanted), mode="bilinear", align_corners=False
        )
    patches = [grid[:, :, row, column] for row in range(wanted) for column in range(wanted)]
    return torch.stack([first, *patches] if end == "class token" else patches, 1)


def as_rows(activation, end):
    kind, _ = KINDS[end]
    last = activation.permute(0, 2, 3, 1) if kind == "map" else activation
    return last.reshape(len(last), -1, last.shape[-1])


@pytest.mark.parametrize(("front", "end"), PAIRS)
def test_each_pair_of_kinds_is_its_row_of_the_table(front, end):
    (front_kind, front_shape), (end_kind, end_shape) = KINDS[front], KINDS[end]
    wider = (5, *end_shape[1:]) if end_kind == "map" else (*end_shape[:-1], 5)
    stitch = Stitch(cut(front_kind, *front_shape), cut(end_kind, *wider), torch.float64)
    start_random(stitch, torch.Generator().manual_seed(0))
    x = draw(6, *front_shape)
    expected = plain_alignment(x, front, end) @ stitch.weight.T + stitch.bias
    found = stitch(x)
    assert found.shape == (6, *wider)
    assert as_rows(found, end).allclose(expected, atol=1e-12)


@pytest.mark.parametrize(("front", "end"), PAIRS)
def test_least_squares_recovers_a_planted_map_between_any_kinds(front, end):
    (front_kind, front_shape), (end_kind, end_shape) = KINDS[front], KINDS[end]
    cuts = cut(front_kind, *front_shape), cut(end_kind, *end_shape)
    planted = Stitch(*cuts, torch.float64)
    start_random(planted, torch.Generator().manual_seed(1))
    x = draw(40, *front_shape)
    y = planted(x).detach() + 0.01 * draw(40, *end_shape, seed=9)
    stitch = lstsq(*cuts, x, y, batch=7)
    rows = plain_alignment(x, front, end)
    columns = torch.cat([rows, torch.ones(*rows.shape[:2], 1)], 2).reshape(-1, 5)
    target = as_rows(y, end).reshape(-1, 4)
    solution = np.linalg.lstsq(columns.numpy(), target.numpy(), rcond=None)[0]
    found = torch.cat([stitch.weight.T, stitch.bias[None]]).detach().numpy()
    np.testing.assert_allclose(found, solution, atol=1e-9)
    np.testing.assert_allclose(found[:4].T, planted.weight.detach().numpy(), atol=0.05)


@pytest.mark.parametrize(("front", "end"), PAIRS)
def test_gradients_of_any_pair_are_those_of_finite_differences(front, end):
    (front_kind, front_shape), (end_kind, end_shape) = KINDS[front], KINDS[end]
    stitch = Stitch(cut(front_kind, *front_shape), cut(end_kind, *end_shape), torch.float64)
    start_random(stitch, torch.Generator().manual_seed(1))
    x = draw(2, *front_shape).requires_grad_()
    assert torch.autograd.gradcheck(
        lambda x, w, b: torch.func.functional_call(stitch, {"weight": w, "bias": b}, (x,)),
        (x, stitch.weight.detach().requires_grad_(), stitch.bias.detach().requires_grad_()),
    )


@pytest.mark.parametrize("other", ["map", "map_last", "patches"])
def test_tokens_that_are_no_grid_are_refused_by_name(other):
    odd = cut("tokens", 6, 4)
    for pair in ((odd, cut(KINDS[other][0], *KINDS[other][1])), (odd, cut("tokens", 7, 4))):
        for front, end in (pair, pair[::-1]):
            with pytest.raises(CellError, match=r"6 tokens are no square grid|7 tokens are no"):
                Stitch(front, end)


def test_tokens_that_are_no_grid_still_meet_their_like_and_vectors():
    odd = cut("tokens", 6, 4)
    x = draw(3, 6, 4)
    for end in (odd, cut("vector", 4)):
        stitch = Stitch(odd, end, torch.float64)
        torch.nn.init.eye_(stitch.weight)
        assert stitch(x).allclose(x if end is odd else x.mean(1))
    stitch = Stitch(cut("vector", 4), odd, torch.float64)
    torch.nn.init.eye_(stitch.weight)
    assert torch.equal(stitch(x[:, 0]), x[:, :1].expand(-1, 6, -1))


def test_patches_need_not_be_square_nor_all_that_is_there():
    # 16 patches are 2 × 8 where the card says so, after two tokens of another kind.
    front = dataclasses.replace(cut("tokens", 18, 4), patches=(2, 8))
    x = draw(3, 18, 4)

    def given(end):
        stitch = Stitch(front, end, torch.float64)
        torch.nn.init.eye_(stitch.weight)
        return stitch(x).detach()

    rows = torch.stack([x[:, 2:10], x[:, 10:18]], 1)
    assert torch.equal(given(cut("map_last", 2, 8, 4)), rows)
    assert given(cut("map", 4, 1, 4)).allclose(
        rows.reshape(3, 1, 2, 4, 2, 4).mean((2, 4)).permute(0, 3, 1, 2), atol=1e-12
    )
    assert torch.equal(given(cut("vector", 4)), x[:, 0])
    halved = rows.reshape(3, 2, 4, 2, 4).mean(3).reshape(3, 8, 4)
    for before, first in ((0, x[:, :0]), (1, x[:, :1]), (2, x[:, :2]), (3, x[:, [0, 0, 0]])):
        end = dataclasses.replace(cut("tokens", 8 + before, 4), patches=(2, 4))
        assert given(end).allclose(torch.cat([first, halved], 1), atol=1e-12)


def test_equally_many_tokens_of_another_grid_are_resized():
    front = dataclasses.replace(cut("tokens", 16, 4), patches=(2, 8))
    end = dataclasses.replace(cut("tokens", 16, 4), patches=(4, 4))
    stitch = Stitch(front, end, torch.float64)
    torch.nn.init.eye_(stitch.weight)
    x = draw(3, 16, 4)
    grid = x.reshape(3, 2, 8, 4).permute(0, 3, 1, 2)
    expected = torch.nn.functional.interpolate(grid, size=(4, 4), mode="bilinear")
    assert stitch(x).allclose(expected.flatten(2).mT, atol=1e-12)
    assert torch.equal(Stitch(front, front).align(x), x)


def test_a_vector_gives_one_row_an_image_however_many_positions_it_goes_to():
    front, end = cut("vector", 4), cut("map", 3, 8, 8)
    assert positions(front, end) == 1
    with pytest.raises(CellError, match="5 rows for 5 unknowns"):
        lstsq(front, end, draw(5, 4), draw(5, 3, 8, 8))


def test_resizing_to_more_positions_adds_no_rows_to_the_fit():
    front, end = cut("map", 24, 2, 2), cut("map", 3, 8, 8)
    assert positions(front, end) == positions(end, front) == 4
    x = draw(6, 24, 2, 2)
    stitch = Stitch(front, end, torch.float64)
    assert torch.linalg.matrix_rank(stitch.front_rows(x)) == 24 < len(stitch.front_rows(x))
    with pytest.raises(CellError, match="24 rows for 25 unknowns"):
        lstsq(front, end, x, draw(6, 3, 8, 8))
    assert images_for_lstsq(front, end, 10, 1000) == math.ceil(10 * 25 / 4)


def test_the_least_squares_start_draws_more_images_where_rows_are_few():
    wide = cut("vector", 128)
    assert images_for_lstsq(wide, wide, 500, 10_000) == 1290
    assert images_for_lstsq(wide, wide, 500, 800) == 800
    assert images_for_lstsq(cut("map", 64, 4, 4), cut("map", 64, 4, 4), 500, 10_000) == 500


def test_the_starts_are_those_that_users_write():
    assert set(transforms.INITS) == set(names.INITS)
