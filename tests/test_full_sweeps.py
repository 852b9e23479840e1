"""The full sweeps: cells, bytes and FLOPs as counted by hand; trials of them on stand-in data."""

from math import prod

import pytest
import yaml

import raying
import standins
from raystitch.results.store import Storage
from raystitch.run.planning import load_sweep, make_plan
from raystitch.sweep.cells import units
from raystitch.sweep.estimate import estimate

CELLS = {
    "cifar10_information": (1 + 3 + 3 + 3) * (9 + 6 + 13) * 11,
    "cifar10_shortcut": 2 * 3 * 3 * 9 * 11,
    "cifar10_adversarial": 4 * 3 * 9 * (11 + 3 * 4),
    "ls_imagenet10": (1 + 3 + 3 + 3) * 9 * 11,
    "imagenet100": (10 + 6 + 9) * (9 + 7) * 11,
}

SLOW = {"cifar10_information", "imagenet100"}
"""Several architectures, or images of 224 pixels: their cuts alone take long to find."""


def slow(names):
    return [pytest.param(n, marks=pytest.mark.slow) if n in SLOW else n for n in names]


@pytest.fixture(scope="module")
def datasets(tmp_path_factory):
    folder = tmp_path_factory.mktemp("datasets")
    standins.cifar10(folder)
    standins.imagenet(folder)
    return folder


@pytest.fixture(scope="module")
def storage(tmp_path_factory):
    """One storage for all plans, so that the cuts of an architecture are looked for once."""
    return Storage(tmp_path_factory.mktemp("runs"))


@pytest.mark.parametrize("name", slow(CELLS))
def test_a_full_sweep_has_the_cells_that_its_comments_count(name, datasets, storage, tmp_path):
    context = load_sweep(standins.sweep_file(name, datasets, tmp_path), storage)
    assert len(make_plan(context).cells) == CELLS[name]
    assert f"= {CELLS[name]}." in (standins.ROOT / f"sweeps/{name}.yaml").read_text()


def convolution(kernel: int, inputs: int, outputs: int, side: int) -> int:
    return 2 * kernel**2 * inputs * outputs * side**2


def resnet18_at_32() -> tuple[list[tuple[int, ...]], list[int], int]:
    """Shapes at the 9 cuts, FLOPs up to each, FLOPs of the whole: convolutions and head alone."""
    shapes: list[tuple[int, ...]] = [(64, 32, 32)]
    flops = [convolution(3, 3, 64, 32)]
    width = 64
    for stage, (wider, side) in enumerate(((64, 32), (128, 16), (256, 8), (512, 4))):
        for block in range(2):
            first = convolution(3, width, wider, side)
            shortcut = convolution(1, width, wider, side) if stage and not block else 0
            flops.append(flops[-1] + first + convolution(3, wider, wider, side) + shortcut)
            shapes.append((wider, side, side))
            width = wider
    return shapes, flops, flops[-1] + 2 * 512 * 10


def vit_base() -> tuple[list[tuple[int, ...]], list[int], int]:
    """The same at the 7 cuts of ViT-Base/16 at 224: 197 tokens of width 768."""
    tokens, width = 197, 768
    mixing = 2 * tokens * width * (3 * width + width + 4 * width + 4 * width)
    block = mixing + 2 * 2 * tokens**2 * width
    patches = 2 * 196 * (3 * 16 * 16) * width
    flops = [patches + (n + 1) * block for n in (0, 2, 4, 6, 8, 10, 11)]
    shapes: list[tuple[int, ...]] = [(tokens, width)] * 6 + [(width,)]
    return shapes, flops, flops[-1] + 2 * width * 100


def by_hand(counts, *, train, test, epochs, steps, classes):
    """(bytes of the largest unit, FLOPs of all units) of one front and its end of the same kind.

    Four objectives (three under noise), published settings: under `standard` nothing can be kept,
    so both networks answer in every epoch; elsewhere once. Test images are answered once, and
    attacked twice with 20 steps forward and back.
    """
    shapes, flops, whole = counts
    most, total = 0, 0
    for cut, (shape, front) in enumerate(zip(shapes, flops, strict=True)):
        kept = prod(shape) + sum(prod(later) for later in shapes[cut:]) + classes
        most = max(most, train * 4 * kept)
        positions = prod(shape) // width_of(shape)
        stitch = 2 * positions * width_of(shape) ** 2
        tails = {"hlm": whole - front, "slm": whole - front, "dm": 0, "fula": flops[-1] - front}
        for protocol in ("standard", "invariance", "noise"):
            answers = epochs + 1 if protocol == "standard" else 1
            total += train * answers * (front + whole)
            total += train * steps * 2 * front * (protocol == "invariance")
            for objective, tail in tails.items():
                if (objective, protocol) != ("hlm", "noise"):
                    total += epochs * train * (3 * stitch + 2 * tail)
                    total += test * (1 + 2 * 20 * 2) * (stitch + whole)
    return most, total


def width_of(shape: tuple[int, ...]) -> int:
    return shape[0] if len(shape) == 3 else shape[-1]


def planned(plan, front, end, train, test):
    """(bytes of the largest unit, FLOPs of all units) of that pair without marker and variant."""
    context = plan.context
    chosen = [c for c in plan.cells if (c.front_model, c.end_model) == (front, end)]
    chosen = [c for c in chosen if c.stitch_marker is None and c.variant is None]
    costs = [estimate(unit, context.sweep, context.cards, train, test) for unit in units(chosen)]
    return max(cost.activation_bytes for cost in costs), sum(cost.flops for cost in costs)


@pytest.mark.parametrize(
    ("name", "front", "end", "counts", "images", "epochs", "classes"),
    [
        ("cifar10_adversarial", "clean-1", "clean-0", resnet18_at_32, (50_000, 10_000), 30, 10),
        pytest.param(
            *("imagenet100", "vit-1", "vit-0", vit_base, (126_689, 5_000), 12, 100),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_bytes_and_flops_are_those_counted_by_hand(
    name, front, end, counts, images, epochs, classes, datasets, storage, tmp_path
):
    plan = make_plan(load_sweep(standins.sweep_file(name, datasets, tmp_path), storage))
    train, test = images
    hand = by_hand(counts(), train=train, test=test, epochs=epochs, steps=200, classes=classes)
    assert planned(plan, front, end, train, test) == pytest.approx(hand, rel=0.2)


def part_of(name, datasets, storage, folder, cuts, most_pairs=None):
    """The sweep file with one pair of each kind (entries and marker), at some of its paper cuts.

    cuts: which of them, as positions; most_pairs: so many kinds at most, the last ones. A trial of
    all pairs takes hours on a CPU.
    """
    path = standins.sweep_file(name, datasets, folder)
    context = load_sweep(path, storage)
    values = yaml.safe_load(path.read_text(encoding="utf-8"))
    kinds: dict[tuple[str, ...], dict[str, str]] = {}
    for pair in values["pairs"]:
        entries = (pair["front"].split("-")[0], pair["end"].split("-")[0])
        same = str(pair["front"] == pair["end"])
        kinds.setdefault((*entries, same, pair.get("stitch_marker", "").split("-")[0]), pair)
    values["pairs"] = list(kinds.values())[-(most_pairs or len(kinds)) :]
    values["cuts"] = {}
    for entry, card in context.cards.items():
        paper = [cut.name for cut in card.cuts if "paper" in cut.sets]
        values["cuts"][entry] = [paper[n] for n in cuts]
    path.write_text(yaml.safe_dump(values), encoding="utf-8")
    return path


def runs_whole(path, root, limit_images):
    """Files in their true format in, networks, IRIs, stitches and rows out, under Ray."""
    outcome = raying.on_ray(path, root, limit_images=limit_images, max_epochs=1)
    assert outcome.exit_code == 0
    assert len(outcome.plan.rows) == len(outcome.plan.cells)
    assert (outcome.plan.rows["status"] == "ok").all()
    return outcome.plan.rows


def test_a_small_trial_of_a_full_sweep_runs_on_stand_in_images(datasets, storage, tmp_path):
    """Its cross-bias pair at its first cut, all objectives and protocols, on eight images."""
    path = part_of("ls_imagenet10", datasets, storage, tmp_path, [0], most_pairs=1)
    rows = runs_whole(path, storage.root, limit_images=8)
    assert len(rows) == 4 * 3 - 1


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize(
    ("name", "images", "cuts"),
    [
        *((name, 64, [0, -1]) for name in CELLS if name != "imagenet100"),
        # ViT-Base at 224 pixels: one cut and few images are enough work for a CPU.
        ("imagenet100", 8, [3]),
    ],
)
def test_a_trial_of_each_full_sweep_runs_on_stand_in_images(
    name, images, cuts, datasets, storage, tmp_path
):
    runs_whole(part_of(name, datasets, storage, tmp_path, cuts), tmp_path / "runs", images)
