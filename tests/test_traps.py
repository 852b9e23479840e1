"""Traps that tools for cutting and comparing networks have fallen into: one test for each.

Those that belong to a module are tested beside it:

trap                                                 where it is tested
BatchNorm of a frozen network drifts                 test_fit: both_networks_are_bit_equal_after_any_fit
                                                     test_pipeline: networks_are_bit_equal_before_and_after
                                                     test_live: networks_stay_bit_equal_and_copies_drift
momentum=0 taken for evaluation mode                 test_live: modes_return_and_momentum_zero_is_no_evaluation_mode
in-place ReLU overwrites what is captured or put in  test_cuts: what_is_captured_is_not_overwritten_in_place
one module called twice                              test_cuts: a_module_called_twice_has_two_names_and_is_reported_as_shared
a network that cannot be traced                      test_cuts: what_cannot_be_traced_is_named
an attack leaves the mode flipped                    test_train: pgd_stays_within_its_bounds_and_leaves_the_network_alone
unbiased CKA of fewer than 4 rows                    test_similarity: unbiased_cka_refuses_fewer_than_four_rows
cells compared, the weak ones stopped                test_fit: a_cell_does_not_depend_on_which_others_are_in_the_unit
resuming from what a scheduler remembers             test_engine: a_unit_goes_on_from_its_saved_state
                                                     test_pipeline: lost_rows_are_run_again_to_the_same_figures
several writers on one file                          test_store: writers_at_once_lose_nothing
missing cells averaged silently                      test_summary: means_are_over_the_seeds_that_are_there_and_say_how_many
                                                     test_tensors: a_mean_says_over_how_many
a layer of a list dropped silently                   test_read: unknown_cuts_and_empty_sets_are_faults_of_the_cuts
layers of unlike networks dropped                    test_plan: cuts_of_unlike_networks_are_paired_by_rounding
"""  # noqa: E501

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from test_store import _as_rows
from torch import Tensor, nn

import sweeping
from raystitch.cards import CutCard, NetworkCard
from raystitch.data import sources
from raystitch.errors import RaystitchError
from raystitch.results.schema import CELL_SCHEMA
from raystitch.results.store import CellStore, Storage
from raystitch.run.planning import load_sweep
from raystitch.settings import Data, Iris
from raystitch.stitching.iris import synthesise
from raystitch.stitching.transforms import Stitch, start_lstsq
from raystitch.zoo import architectures
from raystitch.zoo.architectures import cnn5
from raystitch.zoo.attacks import pgd
from raystitch.zoo.cuts import CutNetwork
from raystitch.zoo.models import Network, Normaliser, build, freeze

TESTS = Path(__file__).parent
ROOM_OF_RAY = TESTS.parent / "raystitch" / "run"


def test_every_test_of_the_table_is_there() -> None:
    pointers = re.findall(r"(test_\w+): (\w+)", __doc__ or "")
    assert len(pointers) > 15
    for module, name in pointers:
        assert f"def test_{name}(" in (TESTS / f"{module}.py").read_text(encoding="utf-8"), name


def noise(batch: int, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(batch)
    return torch.rand(batch, *shape, generator=generator, dtype=dtype)


def wrap(net: nn.Module, *shape: int, classes: int = 10) -> Network:
    return Network(
        net, nn.Identity(), arch="own/net", kwargs={}, classes=classes, input_shape=shape
    )


@pytest.fixture(autouse=True)
def _seeded() -> Iterator[None]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


# --- tracing


class ReadsItsMode(nn.Module):
    """Everything whose graph depends on the mode at the time of tracing."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.late = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3)
        self.norm, self.fc = nn.BatchNorm2d(8), nn.Linear(8, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.dropout(self.stem(x), 0.5, self.training)
        if self.training:
            x = x * 2
        norm = self.norm
        x = F.batch_norm(self.late(x), norm.running_mean, norm.running_var, training=self.training)
        return self.fc(x.mean((2, 3)))


@pytest.mark.parametrize(
    "arch",
    [
        "own",
        "torchvision/mobilenet_v3_small",
        pytest.param("torchvision/regnet_y_400mf", marks=pytest.mark.slow),
        pytest.param("timm/efficientnet_b0", marks=pytest.mark.slow),
    ],
)
def test_the_mode_at_the_time_of_tracing_is_not_baked_in(arch: str) -> None:
    """Squeeze-excite and regnet networks among them: cut in training mode, they evaluate."""
    if arch == "own":
        network = wrap(ReadsItsMode(), 3, 32, 32)
    else:
        kwargs = {"drop_rate": 0.5, "drop_path_rate": 0.5} if arch.startswith("timm") else {}
        network = build(arch, kwargs, classes=10, input_shape=(3, 32, 32), seed=0)
    images = noise(4, 3, 32, 32)
    network.train()
    cut = CutNetwork(network)
    assert network.training
    network.eval()
    with torch.no_grad():
        expected = network(images)
        for card in cut.card.cuts[:: max(1, len(cut.card.cuts) // 4)]:
            front, tail = cut.front(card.name), cut.tail(card.name)
            assert torch.equal(tail(front(images)), expected), card.name


class NotItsChildren(nn.Module):
    """Registered late before early, with a ReLU and a pooling that are no modules."""

    def __init__(self) -> None:
        super().__init__()
        self.late, self.early = nn.Conv2d(8, 8, 1), nn.Conv2d(3, 8, 1)
        self.fc = nn.Linear(8, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.early(x))
        return self.fc((x + self.late(x)).mean((2, 3)))


@pytest.mark.parametrize(
    "net", ["own", pytest.param("torchvision/densenet121", marks=pytest.mark.slow)]
)
def test_a_network_is_not_the_sequence_of_its_children(net: str) -> None:
    """Densenet's forward has a ReLU, a pooling and a flattening that its children lack."""
    if net == "own":
        network = wrap(NotItsChildren(), 3, 32, 32).eval()
        wanted = ["early", "relu"]
    else:
        network = build(net, {}, classes=10, input_shape=(3, 32, 32), seed=0)
        wanted = ["features.transition1", "features.norm5"]
    images = noise(3, 3, 32, 32)
    with pytest.raises(RuntimeError):
        nn.Sequential(*network.net.children())(images)
    cut = CutNetwork(network)
    with torch.no_grad():
        for name in wanted:
            assert torch.equal(cut.tail(name)(cut.front(name)(images)), network(images)), name


class Encoder(nn.Module):
    """Patches, then torch's own encoder layers, which have a fused path in evaluation mode."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, 16, 8, 8)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, norm_first=True)
            for _ in range(3)
        )
        self.fc = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2)
        for layer in self.layers:
            x = layer(x)
        return self.fc(x.mean(1))


def test_activations_are_seen_under_fused_attention() -> None:
    """Without gradients torch fuses a whole layer, and hooks on its parts do not fire."""
    network = wrap(Encoder(), 3, 32, 32).eval()
    images = noise(3, 3, 32, 32)
    cut = CutNetwork(network)
    names = [card.name for card in cut.card.cuts]
    x = network.net.patch(images).flatten(2).transpose(1, 2)
    places, expected = [], []
    for number, layer in enumerate(network.net.layers):
        x = layer(x)
        places.append(names.index(cut.card.cut(f"layers.{number}").name))
        expected.append(x)
    observer = cut.observer(names)
    for fused in (True, False):
        with torch.set_grad_enabled(not fused):
            logits, seen = observer.observe(images)
            assert torch.equal(logits, network(images))
        assert len(seen) == len(names)
        for place, activation in zip(places, expected, strict=True):
            torch.testing.assert_close(seen[place], activation, rtol=0, atol=1e-5)


def branching(classes: int, channels: int) -> nn.Module:
    class Branching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.fc = nn.Conv2d(channels, 4, 1), nn.Linear(4, classes)

        def forward(self, x: Tensor) -> Tensor:
            x = self.stem(x)
            return self.fc((x if x.mean() > 0 else -x).mean((2, 3)))

    return Branching()


def test_a_network_that_cannot_be_traced_is_a_fault_of_its_own(tmp_path, monkeypatch) -> None:
    """It is named at its place, the others have been looked at, and without it the sweep runs."""
    monkeypatch.setitem(architectures.OWN, "branching", branching)
    zoo = {
        "odd": {"arch": "raystitch/branching", "recipe": "untrained"},
        "fine": {"arch": "raystitch/cnn5", "recipe": "untrained", "seeds": [0, 1]},
    }
    storage = Storage(tmp_path / "runs")
    pairs = [{"front": "odd-0", "end": "fine-0"}, {"front": "fine-1", "end": "fine-0"}]
    path = sweeping.write(tmp_path, zoo=zoo, pairs=pairs, cuts=["blocks.2"])
    with pytest.raises(RaystitchError) as caught:
        load_sweep(path, storage)
    faults = str(caught.value)
    assert "zoo.odd.arch" in faults
    assert "raystitch/branching cannot be cut" in faults
    assert "zoo.fine" not in faults
    path = sweeping.write(tmp_path, zoo=zoo, pairs=pairs[1:], cuts=["blocks.2"])
    assert list(load_sweep(path, storage).cards) == ["fine"]


def test_a_network_whose_halves_are_not_exact_leaves_its_own_cells_pending(tmp_path, monkeypatch):
    exact = CutNetwork.check

    def check(self: CutNetwork, cut: str, images: Tensor) -> None:
        if self._network.arch == "raystitch/other":
            raise RaystitchError("raystitch/other does not give its own logits")
        exact(self, cut, images)

    monkeypatch.setitem(architectures.OWN, "other", cnn5)
    monkeypatch.setattr(CutNetwork, "check", check)
    path = sweeping.write(
        tmp_path,
        zoo={
            **sweeping.SMALL["zoo"],
            "other": {"arch": "raystitch/other", "recipe": "untrained"},
        },
        pairs=[{"front": "other-0", "end": "net-0"}, {"front": "net-1", "end": "net-0"}],
        cuts=["blocks.4"],
        objectives=["dm"],
        protocols=["standard"],
    )
    outcome = sweeping.run(path, tmp_path / "runs")
    assert outcome.exit_code == 1
    assert [row["front_model"] for row in outcome.plan.rows.rows(named=True)] == ["net-1"]
    assert [cell.front_model for cell in outcome.plan.pending] == ["other-0"]


def test_a_cut_of_a_list_is_never_dropped() -> None:
    cuts = tuple(CutCard(n + 1, f"blocks.{n}", "vector", (4,), n) for n in range(3))
    card = NetworkCard("own/net", {}, (3, 8, 8), 10, 1, 9, cuts)
    assert [cut.name for cut in card.select(["blocks.2", "blocks.0", "blocks.*"])] == [
        *("blocks.0", "blocks.1", "blocks.2")
    ]
    for wrong in ("blocks.3", "blocks.-1", "stages", "late.*"):
        with pytest.raises(RaystitchError, match="own/net"):
            card.select(["blocks.0", wrong, "blocks.2"])


# --- the engine and the store


def test_no_scheduler_compares_cells_and_none_is_asked_what_was_done() -> None:
    """Trials run first come, first served: no ASHA, no median rule, no `Tuner.restore`."""
    configured = 0
    for path in ROOM_OF_RAY.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom | ast.Import):
                modules = [getattr(node, "module", None) or "", *(n.name for n in node.names)]
                assert not any("schedulers" in module for module in modules), path.name
            if isinstance(node, ast.Attribute):
                assert node.attr not in ("restore", "schedulers", "can_restore"), path.name
            if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "TuneConfig":
                configured += 1
                given = {keyword.arg for keyword in node.keywords}
                assert given.isdisjoint({"scheduler", "metric", "mode", "search_alg"})
    assert configured == 1


@pytest.mark.parametrize("older", ["a", "z"])
def test_the_schema_is_not_that_of_the_first_file(tmp_path: Path, older: str) -> None:
    """A file that lacks a column and one that has it all null, whichever is read first."""
    store = CellStore(Storage(tmp_path), "trial")
    store.folder.mkdir(parents=True)
    columns = {"key": ["old"], "status": ["ok"], "agreement": [70.0]}
    for name, more in ((older, {}), ("m", {"key": ["new"], "agreement": [None], "epochs": [7]})):
        table = {**columns, **more}
        fields = [CELL_SCHEMA.field(column) for column in table]
        made = pa.table(table, schema=pa.schema(fields))
        pq.write_table(_as_rows(made), store.folder / f"{name}-1.parquet")
    reading = store.scan()
    assert reading.warnings == ()
    rows = {row["key"]: row for row in reading.frame.rows(named=True)}
    assert reading.frame.columns == CELL_SCHEMA.names
    assert (rows["old"]["agreement"], rows["old"]["epochs"]) == (70, None)
    assert (rows["new"]["agreement"], rows["new"]["epochs"]) == (None, 7)


# --- pixels and normalisers

MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)
OTHER_MEAN, OTHER_STD = (0.7, 0.2, 0.1), (0.5, 0.4, 0.6)


class MeanPadded(nn.Module):
    """A convolution that pads each channel with the mean pixel, which zero after normalising is."""

    def __init__(self, conv: nn.Conv2d, mean: list[float]) -> None:
        super().__init__()
        (self.margin, _), self.mean = conv.padding, mean
        self.conv = conv

    def forward(self, x: Tensor) -> Tensor:
        margins = (self.margin,) * 4
        planes = [F.pad(x[:, c : c + 1], margins, value=m) for c, m in enumerate(self.mean)]
        return self.conv(torch.cat(planes, 1))


def folded(conv: nn.Conv2d, normaliser: Normaliser, pad: str) -> nn.Module:
    """The convolution of raw pixels that equals ``conv`` of normalised ones.

    Σ W (x − μ)/σ + b = Σ (W/σ) x + (b − Σ W μ/σ). Zero padding is put on after normalising, so raw
    images are padded with μ (``pad`` = mean); padded with zero they give other borders.
    """
    mean, std = (figure.flatten().to(conv.weight.dtype) for figure in normaliser.buffers())
    padding = conv.padding if pad == "zero" else 0
    new = nn.Conv2d(conv.in_channels, conv.out_channels, conv.kernel_size, conv.stride, padding)
    new = new.to(conv.weight.dtype)
    with torch.no_grad():
        new.weight.copy_(conv.weight / std[:, None, None])
        new.bias.copy_(0.0 if conv.bias is None else conv.bias)
        new.bias.sub_((new.weight * mean[:, None, None]).sum((1, 2, 3)))
    if pad == "zero" or not any(conv.padding):
        return new
    outer = MeanPadded(new, mean.tolist())
    outer.margin = conv.padding[0]
    return outer


def normalised(arch: str, seed: int, mean: tuple[float, ...], std: tuple[float, ...]) -> Network:
    """A network with a normaliser and running statistics that are not those of its start."""
    kwargs = {"img_size": 16, "patch_size": 4, "depth": 3} if arch.startswith("timm") else {}
    network = build(
        arch, kwargs, classes=10, input_shape=(3, 16, 16), seed=seed, mean=mean, std=std
    )
    generator = torch.Generator().manual_seed(seed)
    for part in network.modules():
        if isinstance(part, nn.BatchNorm2d):
            part.running_mean.normal_(0, 0.2, generator=generator)
            part.running_var.uniform_(0.5, 2, generator=generator)
    return freeze(network)


def fold(network: Network, pad: str = "mean") -> Network:
    """The same function of images without a normaliser; the network itself is changed."""
    if network.arch.startswith("timm"):
        embedding = network.net.patch_embed
        embedding.proj = folded(embedding.proj, network.normaliser, pad)
    else:
        network.net.blocks[0][0] = folded(network.net.blocks[0][0], network.normaliser, pad)
    network.normaliser = nn.Identity()
    return freeze(network)


def pair(arch: str) -> list[Network]:
    networks = [normalised(arch, 0, MEAN, STD), normalised(arch, 1, OTHER_MEAN, OTHER_STD)]
    return [network.double() for network in networks]


def stitched(front: Network, end: Network, cut: str, images: Tensor) -> Tensor:
    """Logits on the images of the least-squares stitch fitted on others."""
    one, other = CutNetwork(front), CutNetwork(end)
    others = noise(64, 3, 16, 16, dtype=torch.float64)
    with torch.no_grad():
        stitch = Stitch(one.card.cut(cut), other.card.cut(cut), torch.float64)
        start_lstsq(stitch, [(one.front(cut)(others), other.front(cut)(others))])
        return other.tail(cut)(stitch(one.front(cut)(images)))


@pytest.mark.parametrize("arch", ["raystitch/cnn5", "timm/vit_tiny_patch16_224"])
def test_stitching_is_the_same_with_the_normalisers_folded_into_the_first_layers(arch) -> None:
    """With padding (cnn5) and without (the patches of a ViT); networks of unlike normalisers."""
    images = noise(20, 3, 16, 16, dtype=torch.float64)
    expected = stitched(*pair(arch), "blocks.1", images)
    got = stitched(*(fold(network) for network in pair(arch)), "blocks.1", images)
    assert expected.std(0).max() > 1e-5
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-9)
    if arch == "raystitch/cnn5":
        wrong = stitched(*(fold(network, "zero") for network in pair(arch)), "blocks.1", images)
        assert (wrong - expected).abs().max() > 1e-5


def test_a_sweep_gives_the_same_figures_with_the_normalisers_folded(tmp_path, monkeypatch) -> None:
    """IRIs included, which are optimised in pixels; what is left is the rounding of float32."""
    zoo, pairs = {}, [{"front": "a-0", "end": "b-0"}, {"front": "af-0", "end": "bf-0"}]
    for seed, (name, mean, std) in enumerate((("a", MEAN, STD), ("b", OTHER_MEAN, OTHER_STD))):
        network = normalised("raystitch/cnn5", seed, mean, std)
        save_file(network.net.state_dict(), tmp_path / f"{name}.safetensors")
        zoo[name] = {
            "arch": "raystitch/cnn5",
            "weights": f"{name}.safetensors",
            "mean": list(mean),
            "std": list(std),
        }
        bare = fold(network).net
        save_file(bare.state_dict(), tmp_path / f"{name}f.safetensors")
        # The architecture alone: its weights come from the file.
        monkeypatch.setitem(architectures.OWN, f"folded-{name}", lambda *_, net=bare: net)
        zoo[f"{name}f"] = {"arch": f"raystitch/folded-{name}", "weights": f"{name}f.safetensors"}
    path = sweeping.write(
        tmp_path,
        zoo=zoo,
        pairs=pairs,
        cuts=["blocks.2"],
        protocols=["standard", "invariance"],
    )
    outcome = sweeping.run(path, tmp_path / "runs")
    assert outcome.exit_code == 0
    rows = {
        (r["front_model"], r["objective"], r["protocol"]): r
        for r in outcome.plan.rows.rows(named=True)
    }
    assert len(rows) == 2 * 4 * 2
    for (front, objective, protocol), row in rows.items():
        twin = rows["af-0", objective, protocol]
        for figure, tolerance in (("agreement", 0.05), ("accuracy", 0.0), ("iri_residual", 1e-3)):
            assert row[figure] == pytest.approx(twin[figure], abs=tolerance), (front, figure)


def test_pixels_are_clamped_and_normalised_inputs_are_not() -> None:
    """Attacks and IRIs move in pixels of [0, 1]: beyond the normaliser inputs leave that range."""
    network = normalised("raystitch/cnn5", 0, MEAN, STD)
    digits = sources.load(Data(train=24), "train")
    images = torch.from_numpy(digits.images).float() / 255
    labels = torch.from_numpy(digits.labels).long()
    inputs: list[Tensor] = []
    network.net.register_forward_pre_hook(lambda _, given: inputs.append(given[0].detach()))
    attacked = pgd(network, images, labels, eps=0.1, step=0.05, steps=3)
    assert (attacked.min(), attacked.max()) == (0, 1)
    assert torch.cat(inputs).min() < -1
    assert torch.cat(inputs).max() > 1.5
    by_hand = network.net(network.normaliser(attacked))
    assert torch.equal(network(attacked), by_hand)
    # All of eps is used in pixels; clamped inputs would have had no gradient outside.
    moved = (attacked - images).abs()
    free = (images > 0.1) & (images < 0.9)
    assert (moved[free] > 0.1 - 1e-6).float().mean() > 0.5

    front = CutNetwork(network).front("blocks.0")
    iris = synthesise(front, digits, Iris(steps=60, batch=24, rule="adam"), 0, torch.device("cpu"))
    made = torch.from_numpy(iris.images.images).float() / 255
    assert iris.residual.max() < 0.5
    assert front.normaliser(made).min() < -1
    assert front.normaliser(made).max() > 1.5
