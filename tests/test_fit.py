"""The unit's fit: frozen networks stay frozen, cells are independent, failures are outcomes."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from raystitch import names
from raystitch.cards import CutCard
from raystitch.settings import Training
from raystitch.stitching.fit import UnitFit
from raystitch.stitching.jobs import CellJob, Side, UnitJob
from raystitch.stitching.objectives import Answer

CPU = torch.device("cpu")
FRONT, END, LATER = (
    CutCard(1, "front", "map", (4, 4, 4), 0),
    CutCard(1, "j", "map", (5, 4, 4), 0),
    CutCard(2, "k", "vector", (6,), 0),
)


class Net(nn.Module):
    """A small network with a cut after `early`, whose tail can be observed."""

    def __init__(self, width: int, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.early = nn.Sequential(nn.Conv2d(3, width, 3, 1, 1), nn.BatchNorm2d(width), nn.ReLU())
        self.late = nn.Sequential(
            nn.Conv2d(width, 6, 4), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten()
        )
        self.head = nn.Linear(6, 3)
        for module in self.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.running_mean.normal_()
                module.running_var.uniform_(0.5, 2)
        self.eval().requires_grad_(False)

    def observe(self, activation: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        later = self.late(activation)
        return self.head(later), (activation, later)

    def forward(self, activation: Tensor) -> Tensor:
        return self.observe(activation)[0]


class Answers:
    def __init__(self, net: Net, images: Tensor, cuts: tuple[str, ...]) -> None:
        self.net, self.images, self.cuts = net, images, cuts

    def __len__(self) -> int:
        return len(self.images)

    def __call__(self, positions: Tensor) -> Answer:
        with torch.no_grad():
            early = self.net.early(self.images[positions])
            logits, taps = self.net.observe(early)
        return Answer(dict(zip(self.cuts, taps, strict=False)), logits)


def unit(training=None, front=None, end=None, seed=0, labelled=True, budget=1):
    front, end = front or Net(4, 0), end or Net(5, 1)
    generator = torch.Generator().manual_seed(0)
    own, test, real = (torch.rand(n, 3, 4, 4, generator=generator) for n in (60, 40, 60))
    labels, test_labels = (torch.randint(3, (n,), generator=generator) for n in (60, 40))
    sides = [
        Side(*(Answers(net, images, cuts) for images in (own, test, real)))
        for net, cuts in ((front, ("front",)), (end, ("j", "k")))
    ]
    training = training or Training(batch=16, epochs=12, min_epochs=12)
    job = UnitJob(
        FRONT,
        sides[0],
        {"end": sides[1]},
        labels if labelled else None,
        test_labels,
        training,
        budget,
        seed,
        CPU,
    )
    return job, end


def jobs(end, objectives=names.TRAINED_OBJECTIVES, cut=END):
    return [CellJob(o, o, "end", cut, ("j", "k"), end) for o in objectives]


def run(job, cells):
    fit = UnitFit(job, cells)
    outcomes = {found.key: found for found in fit.start()}
    while fit.live:
        outcomes.update({found.key: found for found in fit.epoch()})
    return outcomes


def state(net):
    return {name: value.clone() for name, value in net.state_dict().items()}


@pytest.mark.parametrize("schedule", names.SCHEDULES)
def test_both_networks_are_bit_equal_after_any_fit(schedule):
    front, end = Net(4, 0), Net(5, 1)
    before = [state(front), state(end)]
    training = Training(batch=16, epochs=4, min_epochs=2, schedule=schedule)
    job, _ = unit(training, front, end)
    run(job, jobs(end))
    for net, stored in zip((front, end), before, strict=True):
        assert all(torch.equal(value, stored[name]) for name, value in net.state_dict().items())
        assert all(parameter.grad is None for parameter in net.parameters())


@pytest.mark.parametrize("objective", names.TRAINED_OBJECTIVES)
def test_training_lowers_its_own_objective(objective):
    job, end = unit(Training(batch=16, init="random", epochs=40, min_epochs=40))
    outcome = run(job, jobs(end, [objective]))[objective]
    assert outcome.error is None
    assert outcome.loss_init is not None
    assert min(outcome.curve) < 0.9 * outcome.loss_init
    assert outcome.epochs == len(outcome.curve)
    assert outcome.steps == outcome.epochs * 4  # 54 of 60 images are trained on, in 4 batches


def test_a_cell_does_not_depend_on_which_others_are_in_the_unit():
    job, end = unit()
    together = run(job, jobs(end))
    for objective in names.TRAINED_OBJECTIVES:
        alone = run(job, jobs(end, [objective]))[objective]
        assert alone.curve == together[objective].curve
        assert alone.scores == together[objective].scores


def test_another_seed_gives_another_order():
    training = Training(batch=16, init="random", epochs=3, min_epochs=3)
    curves = {run(*_pair(unit(training, seed=seed), "dm"))["dm"].curve for seed in (0, 0, 1)}
    assert len(curves) == 2


def _pair(made, objective):
    job, end = made
    return job, jobs(end, [objective])


@pytest.mark.parametrize("objective", names.TRAINED_OBJECTIVES)
@pytest.mark.parametrize("init", ["lstsq", "identity"])
def test_a_network_stitched_to_itself_answers_as_itself(objective, init):
    net = Net(4, 0)
    cut = replace(FRONT, name="j")
    training = Training(batch=16, init=init, epochs=1, min_epochs=1, lr=1e-6)
    job, _ = unit(training, net, net)
    outcome = run(job, jobs(net, [objective], cut))[objective]
    assert outcome.agreement_init == pytest.approx(100, abs=1e-4)
    if objective != "hlm":
        assert outcome.loss_init == pytest.approx(0, abs=1e-5)
        assert outcome.scores["agreement"] == pytest.approx(100, abs=0.1)


def test_least_squares_is_the_closed_form_over_all_training_inputs():
    job, end = unit(Training(schedule="step", batch=16, init="random"))
    outcome = run(job, jobs(end, ["dm_lstsq"]))["dm_lstsq"]
    positions = torch.arange(60)
    rows = job.front.own(positions).activations["front"].permute(0, 2, 3, 1).reshape(-1, 4)
    wanted = job.ends["end"].own(positions).activations["j"].permute(0, 2, 3, 1).reshape(-1, 5)
    columns = torch.cat([rows, torch.ones(len(rows), 1)], 1).double().numpy()
    solution = np.linalg.lstsq(columns, wanted.double().numpy(), rcond=None)[0]
    found = torch.cat([outcome.stitch.weight.T, outcome.stitch.bias[None]]).detach().numpy()
    np.testing.assert_allclose(found, solution, atol=1e-5)
    assert (outcome.epochs, outcome.steps, outcome.stop_reason) == (0, 0, "untrained")
    # Nothing that training could find is nearer in the mean of squares.
    trained = run(job, jobs(end, ["dm"]))["dm"]
    error = {
        key: (one.stitch(job.front.own(positions).activations["front"]) - _end(job)).square().sum()
        for key, one in (("lstsq", outcome), ("dm", trained))
    }
    assert error["lstsq"] <= error["dm"]


def _end(job):
    return job.ends["end"].own(torch.arange(60)).activations["j"]


def test_identity_is_never_trained():
    net = Net(4, 0)
    job, _ = unit(Training(batch=16), net, net)
    outcome = run(job, jobs(net, ["identity"], replace(FRONT, name="j")))["identity"]
    assert torch.equal(outcome.stitch.weight, torch.eye(4))
    assert outcome.scores["agreement"] == pytest.approx(100, abs=1e-4)
    assert outcome.steps == 0
    job, end = unit()
    assert "equal shapes" in run(job, jobs(end, ["identity"]))["identity"].error


def test_a_cell_that_diverges_fails_with_its_reason_and_the_others_end():
    job, end = unit(Training(batch=16, lr=1e30, epochs=3, min_epochs=3))
    outcomes = run(job, jobs(end))
    assert "diverged" in outcomes["dm"].error
    assert outcomes["dm"].stop_reason == "failed"
    assert outcomes["dm"].scores == {}


def test_a_zero_target_fails_that_cell_alone_and_names_the_layer():
    class Dead(Net):
        def observe(self, activation):
            logits, (early, later) = super().observe(activation)
            return logits, (early, later * 0)

    job, end = unit(end=Dead(5, 1))
    outcomes = run(job, jobs(end))
    assert "activation at k is zero" in outcomes["fula"].error
    assert [key for key, outcome in outcomes.items() if outcome.error] == ["fula"]


def test_cuts_that_cannot_be_stitched_fail_at_the_start():
    job, end = unit()
    outcomes = run(job, jobs(end, ["dm"], CutCard(1, "j", "tokens", (6, 5), 0)))
    assert "cannot be stitched" in outcomes["dm"].error


def test_real_images_start_from_another_least_squares_fit():
    own, real = (
        run(*_pair(unit(Training(batch=16, init_images=images, epochs=1, min_epochs=1)), "dm"))[
            "dm"
        ]
        for images in ("own", "real")
    )
    assert own.loss_init != real.loss_init


def test_without_labels_the_label_free_objectives_train():
    job, end = unit(labelled=False)
    outcomes = run(job, jobs(end, ["slm", "dm", "fula"]))
    assert all(outcome.error is None for outcome in outcomes.values())


def test_budget_multiplies_the_epochs():
    training = Training(batch=16, schedule="step", epochs=3, drop_last=True)
    once, fourfold = (run(*_pair(unit(training, budget=b), "dm"))["dm"] for b in (1, 4))
    assert (once.epochs, fourfold.epochs) == (3, 12)
    assert once.steps == 9  # 60 images in three whole batches of 16
    assert once.stop_reason == "schedule"


def test_published_training_equals_a_plain_loop():
    """Adam with coupled decay on the same batches, written out independently."""
    training = Training(batch=20, schedule="step", epochs=3, lr=1e-3, init="random", drop_last=True)
    job, end = unit(training)
    ours = run(job, jobs(end, ["slm"]))["slm"].stitch
    fit = UnitFit(job, jobs(end, ["slm"]))
    assert list(fit.start()) == []
    plain = fit.live[0].stitch
    optimiser = torch.optim.Adam(plain.parameters(), 1e-3, weight_decay=1e-4)
    rates = torch.optim.lr_scheduler.MultiStepLR(optimiser, [1, 2], 0.1)
    for _ in range(3):
        fit.epochs += 1
        for positions in fit._batches():
            front = job.front.own(positions).activations["front"]
            target = job.ends["end"].own(positions).logits.log_softmax(1)
            found = end(plain(front)).log_softmax(1)
            optimiser.zero_grad()
            (target.exp() * (target - found)).sum(1).mean().backward()
            optimiser.step()
        rates.step()
    assert ours.weight.allclose(plain.weight, atol=1e-6)
    assert not ours.weight.allclose(torch.zeros_like(ours.weight))


def test_noise_stitches_in_under_the_standard_protocol():
    """Smith 2025: one random vector per class plus noise reaches high accuracy under hlm."""
    end = Net(5, 1)
    generator = torch.Generator().manual_seed(3)
    codes = torch.randn(3, 4, 4, 4, generator=generator)

    class Coded(Answers):
        def __init__(self, labels):
            self.labels = labels
            noise = torch.randn(len(labels), 4, 4, 4, generator=generator)
            self.activation = codes[labels] + 0.3 * noise

        def __len__(self):
            return len(self.labels)

        def __call__(self, positions):
            return Answer({"front": self.activation[positions]})

    labels, test_labels = (torch.randint(3, (n,), generator=generator) for n in (400, 200))
    images = torch.rand(600, 3, 4, 4, generator=generator)
    side = Side(Coded(labels), Coded(test_labels))
    ends = Side(*(Answers(end, part, ("j", "k")) for part in images.split([400, 200])))
    job, _ = unit(Training(init="random", epochs=150, min_epochs=30))
    job = replace(job, front=side, ends={"end": ends}, labels=labels, test_labels=test_labels)
    assert run(job, jobs(end, ["hlm"]))["hlm"].scores["accuracy"] >= 99


@pytest.mark.parametrize("schedule", names.SCHEDULES)
def test_a_fit_that_goes_on_from_its_state_gives_the_same_numbers(schedule):
    """Stopped after any epoch, cells that had not ended go on bit for bit."""
    training = Training(batch=16, epochs=9, min_epochs=2, patience=1, schedule=schedule)
    job, end = unit(training)
    whole = run(job, jobs(end))
    for stop_after in (1, 4):
        fit = UnitFit(job, jobs(end))
        ended = {found.key for found in fit.start()}
        for _ in range(stop_after):
            ended |= {found.key for found in fit.epoch()}
        states = fit.capture()
        assert set(states) == set(names.TRAINED_OBJECTIVES) - ended
        again = UnitFit(job, jobs(end, states), states)
        outcomes = {found.key: found for found in again.start()}
        while again.live:
            outcomes.update({found.key: found for found in again.epoch()})
        assert set(outcomes) == set(states)
        for key, outcome in outcomes.items():
            assert outcome.curve == whole[key].curve
            assert outcome.scores == whole[key].scores
            assert outcome.stop_reason == whole[key].stop_reason
            assert outcome.steps == whole[key].steps
            assert torch.equal(outcome.stitch.weight, whole[key].stitch.weight)
