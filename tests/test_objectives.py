"""The four losses against the reference vectors, closed forms and finite differences."""

import math

import pytest
import torch

import vectors
from raystitch import names
from raystitch.cards import CutCard
from raystitch.errors import CellError
from raystitch.stitching.objectives import OBJECTIVES, Answer, relative_distance
from raystitch.stitching.transforms import Stitch

VECTORS = vectors.load()


def loss(objective, stitched, end, labels=None, cuts=("j",)):
    return OBJECTIVES[objective].loss(stitched, end, labels, cuts)


def test_the_registry_holds_the_names_that_users_write():
    assert tuple(OBJECTIVES) == names.OBJECTIVES


@pytest.mark.parametrize("case", VECTORS["dm"])
def test_dm_gives_the_reference_values(case):
    stitched, end = vectors.tensor(case["stitched"]), vectors.tensor(case["end"])
    found = loss("dm", Answer({"j": stitched}), Answer({"j": end}))
    assert float(found) == pytest.approx(case["dm"], abs=vectors.TOLERANCE)


@pytest.mark.parametrize("case", VECTORS["fula"]["cases"])
def test_fula_gives_the_reference_values_layer_by_layer_and_in_the_mean(case):
    stitched = [vectors.tensor(layer) for layer in VECTORS["fula"]["stitched"]]
    end = [vectors.tensor(layer) for layer in VECTORS["fula"]["end"]]
    cuts = tuple(str(k) for k in range(case["cut_index"], len(end)))
    s, g = ({cut: layers[int(cut)] for cut in cuts} for layers in (stitched, end))
    per_layer = [float(loss("fula", Answer(s), Answer(g), cuts=(cut,))) for cut in cuts]
    assert per_layer == pytest.approx(case["per_layer"], abs=vectors.TOLERANCE)
    mean = float(loss("fula", Answer(s), Answer(g), cuts=cuts))
    assert mean == pytest.approx(case["fula"], abs=vectors.TOLERANCE)


def test_slm_gives_the_reference_value():
    case = VECTORS["slm"]
    stitched = Answer({}, vectors.tensor(case["logits"]))
    end = Answer({}, vectors.tensor(case["end_logits"]))
    assert float(loss("slm", stitched, end)) == pytest.approx(case["slm"], abs=vectors.TOLERANCE)


def test_hlm_gives_the_reference_value():
    case = VECTORS["hlm"]
    stitched = Answer({}, vectors.tensor(case["logits"]))
    found = loss("hlm", stitched, Answer({}), torch.tensor(case["labels"]))
    assert float(found) == pytest.approx(case["hlm"], abs=vectors.TOLERANCE)


def test_slm_is_zero_only_where_both_answer_alike():
    logits = torch.randn(4, 5, generator=torch.Generator().manual_seed(0))
    assert float(loss("slm", Answer({}, logits + 3), Answer({}, logits))) == pytest.approx(
        0, abs=1e-6
    )
    assert float(loss("slm", Answer({}, 2 * logits), Answer({}, logits))) > 0.05


def test_fula_with_the_end_cut_alone_is_dm():
    generator = torch.Generator().manual_seed(1)
    s, g = (Answer({"j": torch.randn(3, 4, 2, 2, generator=generator)}) for _ in range(2))
    assert torch.equal(loss("fula", s, g), loss("dm", s, g))


def test_dm_closed_form_is_unsquared_and_over_the_whole_batch():
    s, g = torch.tensor([[3.0, 0.0], [0.0, 4.0]]), torch.tensor([[0.0, 0.0], [0.0, 2.0]])
    found = float(loss("dm", Answer({"j": s}), Answer({"j": g})))
    assert found == pytest.approx(math.sqrt(9 + 4) / 2)


@pytest.mark.parametrize("objective", ["dm", "fula"])
def test_a_target_of_norm_zero_is_an_error_that_names_the_layer(objective):
    s, g = Answer({"layer3": torch.ones(2, 3)}), Answer({"layer3": torch.zeros(2, 3)})
    with pytest.raises(CellError, match="layer3"):
        loss(objective, s, g, cuts=("layer3",))


KINDS = {
    "map": (CutCard(1, "f", "map", (2, 4, 4), 0), CutCard(1, "j", "map", (3, 2, 2), 0)),
    "map_last": (CutCard(1, "f", "map", (2, 4, 4), 0), CutCard(1, "j", "map_last", (2, 2, 3), 0)),
    "tokens": (CutCard(1, "f", "tokens", (5, 2), 0), CutCard(1, "j", "tokens", (5, 3), 0)),
    "vector": (CutCard(1, "f", "vector", (4,), 0), CutCard(1, "j", "vector", (3,), 0)),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("objective", names.OBJECTIVES)
def test_gradient_of_the_stitch_equals_finite_differences(objective, kind):
    front_cut, end_cut = KINDS[kind]
    generator = torch.Generator().manual_seed(7)

    def draw(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    activation, labels = draw(6, *front_cut.shape), torch.tensor([0, 1, 2, 3, 0, 1])
    width = math.prod(end_cut.shape)
    hidden, head = draw(width, 5), draw(5, 4)
    end = Answer({"j": draw(6, *end_cut.shape), "k": draw(6, 5)}, draw(6, 4))
    stitch = Stitch(front_cut, end_cut, dtype=torch.float64)
    with torch.no_grad():
        for parameter in stitch.parameters():
            parameter.copy_(draw(*parameter.shape))

    def whole_loss():
        s_j = stitch(activation)
        s_k = torch.tanh(s_j.flatten(1) @ hidden)
        return loss(objective, Answer({"j": s_j, "k": s_k}, s_k @ head), end, labels, ("j", "k"))

    gradients = torch.autograd.grad(whole_loss(), list(stitch.parameters()))
    step = 1e-6
    for parameter, gradient in zip(stitch.parameters(), gradients, strict=True):
        flat = parameter.data.view(-1)
        for i in range(len(flat)):
            value = float(flat[i])
            flat[i] = value + step
            above = whole_loss().item()
            flat[i] = value - step
            below = whole_loss().item()
            flat[i] = value
            assert float(gradient.view(-1)[i]) == pytest.approx(
                (above - below) / (2 * step), abs=1e-7
            )


def test_the_gradient_of_a_relative_distance_is_autograds_own() -> None:
    generator = torch.Generator().manual_seed(0)
    drawn = [torch.randn(3, 4, 5, 5, generator=generator, dtype=torch.float64) for _ in range(2)]
    stitched, target = drawn[0].requires_grad_(), drawn[1]
    (found,) = torch.autograd.grad(3 * relative_distance(stitched, target, "cut"), stitched)
    plain = 3 * (torch.linalg.vector_norm(stitched - target) / torch.linalg.vector_norm(target))
    (wanted,) = torch.autograd.grad(plain, stitched)
    assert torch.equal(found, wanted)
    assert torch.autograd.gradcheck(lambda s: relative_distance(s, target, "cut"), (stitched,))


def test_the_gradient_of_a_distance_of_zero_is_zero() -> None:
    target = torch.ones(2, 3)
    stitched = target.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(relative_distance(stitched, target, "cut"), stitched)
    assert torch.equal(gradient, torch.zeros(2, 3))
