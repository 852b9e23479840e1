"""Frozen halves in training mode: private copies drift, networks do not, cells stay independent."""

import copy
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from test_fit import END, Answers, Net, run, state, unit
from torch import nn

from raystitch.settings import Training
from raystitch.stitching.fit import UnitFit
from raystitch.stitching.jobs import CellJob
from raystitch.stitching.live import Live, LiveHalf
from raystitch.stitching.objectives import Answer
from raystitch.zoo.attacks import pgd
from raystitch.zoo.augment import augment
from raystitch.zoo.cuts import CutNetwork
from raystitch.zoo.models import build, digest, freeze
from raystitch.zoo.modes import drifted, fixed_bn, fixed_dropout, private_copy, training_modes
from raystitch.zoo.tracing import trace

PUBLISHED = {"schedule": "step", "epochs": 6, "batch": 16, "lr": 0.01, "drop_last": True}
OBJECTIVES = ("hlm", "slm", "dm", "fula")
ROLES = ("front", "target", "tail")


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


@pytest.mark.parametrize(
    ("arch", "cut"), [("raystitch/cnn5", "blocks.2"), ("timm/resnetv2_50", "stages.1")]
)
def test_halves_of_a_real_network_take_batch_statistics_and_leave_it_as_it_is(arch, cut):
    """The graph is taken in evaluation mode; its BatchNorm must still switch in the copies."""
    kwargs = {"layers": [1, 1, 1, 1], "channels": [8, 8, 8, 8], "stem_chs": 4}
    kwargs |= {"norm_layer": "batchnorm2d"}
    network = freeze(
        build(
            arch,
            kwargs if arch.startswith("timm") else {},
            classes=10,
            input_shape=(3, 32, 32),
            seed=0,
        )
    )
    before, net = digest(network), CutNetwork(network)
    images = torch.rand(16, 3, 32, 32)
    whole = copy.deepcopy(network)
    for part in whole.modules():
        part.training = isinstance(part, nn.BatchNorm2d)
    front, tail = private_copy(net.front(cut)), private_copy(net.tail(cut))
    with torch.no_grad():
        with training_modes(front, bn=True, dropout=False):
            activation = front(images)
        with training_modes(tail, bn=True, dropout=False):
            logits = tail(activation)
        assert torch.allclose(logits, whole(images), atol=1e-5)
        assert not torch.allclose(logits, network(images), atol=1e-3)
    assert digest(network) == before
    moved = {**drifted(front), **drifted(tail)}
    expected = [b for n, b in whole.named_buffers() if n.endswith("running_mean")]
    ours = [b for n, b in moved.items() if n.endswith("running_mean")]
    assert len(ours) == len(expected) > 0
    assert sorted(float(b.sum()) for b in ours) == pytest.approx(
        sorted(float(b.sum()) for b in expected), abs=1e-4
    )


def test_the_three_halves_of_a_stitch_drop_other_elements():
    job, *_ = live_unit(Training(**PUBLISHED, dropout=True))
    step, half = job.live.step(torch.arange(8), 1, 0), nn.Dropout(0.5).eval()
    ones = torch.ones(64)
    drawn = [job.live.run(half, step, role, lambda: half(ones)) for role in ROLES]
    again = job.live.run(half, step, "tail", lambda: half(ones))
    assert torch.equal(again, drawn[2])
    assert not any(torch.equal(drawn[one], drawn[one - 1]) for one in range(3))


class Functional(nn.Module):
    """A network that calls what torch has modules for as functions."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm2d(3)
        self.rate = 0.3

    def forward(self, images):
        norm = self.norm
        images = F.batch_norm(images, norm.running_mean, norm.running_var, training=self.training)
        return F.dropout(images.mean((2, 3)), self.rate, self.training)


class Attending(nn.Module):
    def __init__(self, rate):
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, dropout=rate)

    def forward(self, tokens):
        return self.attention(tokens, tokens, tokens)[0]


def test_what_a_graph_cannot_put_into_training_mode_is_found():
    timm = pytest.importorskip("timm")
    assert fixed_dropout(trace(Attending(0.0), "net")) == ()
    assert fixed_dropout(trace(Attending(0.1), "net")) == ("attention",)
    assert fixed_dropout(trace(Dropping(5, 1).early, "net")) == ()
    functional = trace(nn.Sequential(nn.Conv2d(3, 3, 1), Functional()), "net")
    assert fixed_dropout(functional) == fixed_bn(functional) == ("1",)

    def vit(**rates):
        net = timm.create_model("vit_tiny_patch16_224", img_size=32, patch_size=8, **rates)
        return trace(net, "vit")

    assert fixed_dropout(vit()) == fixed_bn(vit()) == ()
    assert fixed_dropout(vit(drop_rate=0.1)) == fixed_dropout(vit(proj_drop_rate=0.1)) == ()
    lost = fixed_dropout(vit(drop_path_rate=0.2))
    assert {"blocks.11.drop_path1", "blocks.11.drop_path2"} <= set(lost)
    assert "blocks.0.attn.attn_drop" in fixed_dropout(vit(attn_drop_rate=0.1))
    torchvision = pytest.importorskip("torchvision")
    net = torchvision.models.convnext_tiny()
    traced = trace(net, "convnext")
    assert fixed_dropout(traced) == fixed_bn(traced) == ()  # its dropped paths are leaves
