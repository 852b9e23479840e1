"""Frozen halves in training mode: private copies drift, networks do not, cells stay independent."""

from dataclasses import replace

import pytest
import torch
from test_fit import END, Answers, Net, run, state, unit
from torch import nn

from raystitch.errors import CellError
from raystitch.settings import Training
from raystitch.stitching.fit import UnitFit
from raystitch.stitching.jobs import CellJob
from raystitch.stitching.live import Live, LiveHalf
from raystitch.stitching.objectives import Answer
from raystitch.zoo.attacks import pgd
from raystitch.zoo.augment import augment
from raystitch.zoo.modes import check_dropout, drifted, private_copy, training_modes

PUBLISHED = {"schedule": "step", "epochs": 6, "batch": 16, "lr": 0.01, "drop_last": True}
OBJECTIVES = ("hlm", "slm", "dm", "fula")


class Dropping(Net):
    """The network of the fit's tests with dropout before its head."""

    def __init__(self, width, seed):
        super().__init__(width, seed)
        self.head = nn.Sequential(nn.Dropout(0.4), self.head)
        self.eval().requires_grad_(False)


class Half(nn.Module):
    """The early half alone, as a module that holds nothing of the late one."""

    def __init__(self, net):
        super().__init__()
        self.early = net.early

    def forward(self, images):
        return self.early(images)


def live_unit(training, front=None, end=None, objectives=OBJECTIVES, images=None):
    """A unit as `run.bench` makes it: copies for the front, for each target and for each tail."""
    job, end = unit(training, front, end or Dropping(5, 1))
    front = job.front.own.net
    half, observer = private_copy(Half(front)), private_copy(end)
    pixels = job.front.own.images

    def views(positions, kind, generator):
        return augment(pixels[positions], kind, generator)

    def target(given):
        logits, taps = observer.observe(observer.early(given))
        return Answer(dict(zip(("j", "k"), taps, strict=True)), logits)

    live = Live(
        views,
        views,
        LiveHalf(half, lambda given: Answer({"front": half(given)})),
        {"end": LiveHalf(observer, target)},
        training,
        job.seed,
    )

    class Drifting(Answers):
        def __call__(self, positions):
            with torch.no_grad():
                return Answer({"front": half(self.images[positions])})

    own, test = (Drifting(front, side.images, ()) for side in (job.front.own, job.front.test))
    job = replace(job, live=live, front=replace(job.front, own=own, test=test))
    cells = [CellJob(o, o, "end", END, ("j", "k"), private_copy(end)) for o in objectives]
    return job, cells, front, end


def test_networks_stay_bit_equal_and_copies_drift():
    training = Training(**PUBLISHED, bn="batch", dropout=True, augment="flip_crop")
    job, cells, front, end = live_unit(training)
    before = [state(front), state(end)]
    first = [state(cell.tail) for cell in cells]
    run(job, cells)
    for net, stored in zip((front, end), before, strict=True):
        assert all(torch.equal(value, stored[name]) for name, value in net.state_dict().items())
        assert not any(part.training for part in net.modules())
    assert not torch.equal(job.live.front.module.early[1].running_mean, front.early[1].running_mean)
    for cell, stored in zip(cells, first, strict=True):
        moved = not torch.equal(cell.tail.late[1].running_mean, stored["late.1.running_mean"])
        assert moved == (cell.objective != "dm")
        assert not any(part.training for part in cell.tail.modules())


@pytest.mark.parametrize(
    "settings",
    [
        {"bn": "batch"},
        {"dropout": True},
        {"augment": "flip_crop"},
        {"bn": "batch", "dropout": True, "augment": "flip_resized_crop"},
        {"attack_share": 0.5, "attack_steps": 2},
    ],
)
def test_each_setting_counts_and_a_cell_does_not_depend_on_its_unit(settings):
    training = Training(**PUBLISHED, **settings)
    together = run(*live_unit(training)[:2])
    plain = run(*live_unit(Training(**PUBLISHED))[:2])
    for objective in OBJECTIVES:
        alone = run(*live_unit(training, objectives=(objective,))[:2])[objective]
        assert alone.curve == together[objective].curve
        assert alone.scores == together[objective].scores
        # Dropout lies in the head, which `dm` and `fula` do not look at.
        same = alone.curve == plain[objective].curve
        assert same == (settings == {"dropout": True} and objective in ("dm", "fula"))


@pytest.mark.parametrize("stop_after", [1, 4])
def test_a_cell_goes_on_from_its_state_with_what_has_drifted(stop_after):
    training = Training(**PUBLISHED, bn="batch", dropout=True, augment="flip_crop")
    whole = run(*live_unit(training)[:2])
    job, cells, *_ = live_unit(training)
    fit = UnitFit(job, cells)
    assert not list(fit.start())
    for _ in range(stop_after):
        list(fit.epoch())
    states = fit.capture()
    job, cells, *_ = live_unit(training)
    again = UnitFit(job, cells, states)
    outcomes = {found.key: found for found in again.start()}
    while again.live:
        outcomes.update({found.key: found for found in again.epoch()})
    for key, outcome in outcomes.items():
        assert outcome.curve == whole[key].curve
        assert outcome.scores == whole[key].scores


def test_batch_statistics_equal_a_plain_loop():
    """Published recipe written out plainly: whole modules in training mode, one cell."""
    training = Training(**PUBLISHED, bn="batch", init="random")
    job, cells, front, end = live_unit(training, objectives=("slm",))
    outcome = run(job, cells)["slm"]
    front, target, tail = (private_copy(net) for net in (front, end, end))
    fit = UnitFit(*live_unit(training, objectives=("slm",))[:2])
    list(fit.start())
    plain = nn.Conv2d(4, 5, 1)
    plain.load_state_dict(
        {
            "weight": fit.live[0].stitch.weight[:, :, None, None].detach().clone(),
            "bias": fit.live[0].stitch.bias.detach().clone(),
        }
    )
    optimiser = torch.optim.Adam(plain.parameters(), lr=0.01, weight_decay=1e-4)
    rates = torch.optim.lr_scheduler.MultiStepLR(optimiser, [2, 4], 0.1)
    for net in (front, target, tail):
        for part in net.modules():
            part.training = isinstance(part, nn.BatchNorm2d)
    images = job.front.own.images
    for _ in range(6):
        fit.epochs += 1
        for positions in fit._batches():
            batch = images[positions]
            with torch.no_grad():
                wanted = target(target.early(batch)).log_softmax(1)
                activation = front.early(batch)
            found = tail(plain(activation)).log_softmax(1)
            optimiser.zero_grad()
            (wanted.exp() * (wanted - found)).sum(1).mean().backward()
            optimiser.step()
        rates.step()
    assert outcome.stitch.weight.allclose(plain.weight[:, :, 0, 0], atol=1e-6)
    assert outcome.stitch.bias.allclose(plain.bias, atol=1e-6)
    ours = drifted(cells[0].tail)
    for name, buffer in drifted(tail).items():
        assert buffer.double().allclose(ours[name].double(), atol=1e-6)
    # Scored in evaluation mode, with the statistics that have drifted.
    with torch.no_grad():
        for net in (front, tail):
            net.eval()
        logits = tail(plain(front.early(job.front.test.images)))
    right = (logits.argmax(1) == job.test_labels).double().mean()
    assert outcome.scores["accuracy"] == pytest.approx(100 * float(right))


def test_attacked_images_are_those_of_pgd_on_the_stitched_network():
    training = Training(**PUBLISHED, attack_share=0.5, attack_steps=3, attack_eps=0.1)
    job, cells, *_ = live_unit(training, objectives=("slm",))
    fit = UnitFit(job, cells)
    list(fit.start())
    fit.epochs = 1
    (cell,) = fit.live
    positions = next(iter(fit._batches()))
    step = job.live.step(positions, 1, 0)
    attacked, activation, target = cell._attacked(step, job.labels[positions])
    half, tail = job.live.front.module, cells[0].tail
    expected = pgd(
        lambda x: tail(cell.stitch(half(x))),
        step.front_images[:8],
        job.labels[positions][:8],
        eps=0.1,
        step=2 / 255,
        steps=3,
    )
    assert torch.equal(attacked.front_images[:8], expected)
    assert torch.equal(attacked.front_images[8:], step.front_images[8:])
    assert attacked.end_images is attacked.front_images
    assert torch.equal(activation, half(attacked.front_images))
    assert not torch.equal(target.logits, job.live.end_answer("end", step).logits)
    assert all(parameter.grad is None for parameter in cell.stitch.parameters())


def test_modes_return_and_momentum_zero_is_no_evaluation_mode():
    net = Dropping(5, 1)
    half = private_copy(net)
    with training_modes(half, bn=True, dropout=False):
        assert half.late[1].training
        assert not half.head[0].training
    assert not any(part.training for part in half.modules())
    assert half.late[0].weight is net.late[0].weight
    assert half.late[1].running_mean is not net.late[1].running_mean
    half.late[1].momentum = 0.0
    images = torch.rand(8, 3, 4, 4)
    with torch.no_grad():
        evaluated = half(half.early(images))
        with training_modes(half, bn=True, dropout=False):
            assert not torch.allclose(half(half.early(images)), evaluated)


def test_dropout_that_a_graph_has_lost_is_refused_by_name():
    timm = pytest.importorskip("timm")
    check_dropout(Dropping(5, 1), "net")
    lost = timm.create_model("vit_tiny_patch16_224", img_size=32, patch_size=8, drop_path_rate=0.2)
    with pytest.raises(CellError, match=r"vit drops activations in 'blocks\.\d+\.drop_path"):
        check_dropout(lost, "vit")
    fused = timm.create_model("vit_tiny_patch16_224", img_size=32, patch_size=8, attn_drop_rate=0.2)
    assert fused.blocks[0].attn.fused_attn
    with pytest.raises(CellError, match=r"vit drops activations in 'blocks\.0\.attn'"):
        check_dropout(fused, "vit")
    attention = nn.Sequential(nn.MultiheadAttention(4, 2, dropout=0.1))
    with pytest.raises(CellError, match=r"net drops activations in '0' \(MultiheadAttention\)"):
        check_dropout(attention, "net")
    kept = timm.create_model("vit_tiny_patch16_224", img_size=32, patch_size=8, proj_drop_rate=0.2)
    check_dropout(kept, "vit")
