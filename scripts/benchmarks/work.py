"""The work that benchmarks of training share: a narrow ResNet-18 at 32 × 32, and the quickstart."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from rich.console import Console
from torch import Tensor

import plain_loop
from raystitch.data import sources
from raystitch.data.catalogue import Split
from raystitch.results.store import Storage
from raystitch.run.iri_specs import IriShardSpec
from raystitch.run.local import LocalRunner
from raystitch.run.pipeline import run_sweep
from raystitch.run.planning import Context, Say, load_sweep
from raystitch.run.progress import Reporter
from raystitch.run.work import BuiltShard, Left, OnReport, UnitWork
from raystitch.run.workshop import Workshop
from raystitch.seeds import derive
from raystitch.settings import Data

CUTS = {1: "relu", 3: "layer1.1", 5: "layer2.1", 7: "layer3.1", 9: "layer4.1"}
"""Those of the paper, by their number."""

IRIS = {"rule": "sign", "lr": 1 / 255, "steps": 20, "tolerance": 0.0}

QUICKSTART = Path(__file__).parents[2] / "sweeps" / "quickstart.yaml"

LEAN = {"layout": "channels_last", "fold_bn": True}


def digits_at_32(folder: Path) -> Path:
    """The embedded digits, each pixel four times, as an ``.npz`` data set."""
    arrays: dict[str, Any] = {}
    splits: tuple[Split, ...] = ("train", "test")
    for split in splits:
        found = sources.load(Data(), split)
        larger = np.kron(found.images, np.ones((1, 1, 2, 2), np.uint8))
        arrays[f"{split}_images"] = larger.transpose(0, 2, 3, 1)
        arrays[f"{split}_labels"] = found.labels
    path = folder / "digits32.npz"
    np.savez(path, **arrays)
    return path


def sweep_file(
    folder: Path, name: str, width: int, threads: int, images: int = 256, **changes: Any
) -> Path:
    """Two seeds of a ResNet-18 of that width, briefly trained, the second stitched to the first.

    images: of training and of test; what is in ``changes`` replaces fields of the file.
    """
    values = {
        "name": name,
        "data": {
            "source": "npz",
            "path": str(digits_at_32(folder)),
            "train": images,
            "test": images,
        },
        "zoo": {
            "net": {
                "arch": "raystitch/resnet18_cifar",
                "kwargs": {"width": width},
                "seeds": [0, 1],
                "epochs": 4,
                "batch": 64,
                "lr": 0.05,
            }
        },
        "pairs": [{"front": "net-1", "end": "net-0"}],
        "cuts": list(CUTS.values()),
        "fula_cuts": "paper",
        "objectives": ["hlm", "slm", "dm", "fula"],
        "protocols": ["standard", "invariance"],
        "training": {"schedule": "step", "epochs": 5, "batch": 64, "init_count": 256},
        "iris": IRIS,
        "compute": LEAN,
        "execution": {"threads": threads, "device": "cpu", "cache_folder": str(folder / "cache")},
        **changes,
    }
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(values), encoding="utf-8")
    return path


def quickstart_file(folder: Path, **changes: Any) -> Path:
    """The quickstart with these fields changed, on CPUs, its activations kept in the folder."""
    values = yaml.safe_load(QUICKSTART.read_text(encoding="utf-8"))
    execution = {**values["execution"], "device": "cpu", "cache_folder": str(folder / "cache")}
    path = folder / "quickstart.yaml"
    path.write_text(yaml.safe_dump({**values, "execution": execution, **changes}), "utf-8")
    return path


class _Prepares(LocalRunner):
    """Makes all that stitches need, and hands them over instead of training them.

    iris: IRIs too, else images and networks alone.
    """

    def __init__(self, context: Context, *, iris: bool) -> None:
        super().__init__(context)
        self.iris = iris
        self.work: list[UnitWork] = []

    def build_shards(self, specs: Sequence[IriShardSpec]) -> Iterator[BuiltShard]:
        return super().build_shards(specs) if self.iris else iter(())

    def run_units(self, work: Sequence[UnitWork], on_report: OnReport) -> Iterator[Left]:
        self.work = list(work)
        return iter(())


@dataclass(frozen=True)
class Prepared:
    """A sweep whose images, networks and IRIs are there, and none of whose stitches is trained."""

    context: Context
    workshop: Workshop
    work: list[UnitWork]


def prepare(
    file: Path, root: Path, *, limit_images: int | None = None, iris: bool = True
) -> Prepared:
    """Make all that the stitches of a sweep need, untimed; networks are loaded and cut already.

    limit_images: at most so many of each split; iris: False to leave the IRIs to be made.
    """
    runners: list[_Prepares] = []

    def start(context: Context, say: Say) -> _Prepares:
        runners.append(_Prepares(context, iris=iris))
        return runners[0]

    context = load_sweep(file, Storage(root), limit_images=limit_images, say=lambda text: None)
    run_sweep(context, silent(), start=start)
    workshop = runners[0].workshop
    for model in context.networks:
        workshop.cut_network(model)
    return Prepared(context, workshop, runners[0].work)


def silent() -> Reporter:
    """A reporter that nobody hears."""
    return Reporter(Console(file=io.StringIO()))


def hooked(prepared: Prepared, model: str, cuts: Sequence[str] | None = None) -> plain_loop.Hooked:
    """A copy of a network as the plain loop wants it, watched at these cuts (the paper's)."""
    network = copy.deepcopy(prepared.workshop.network(model))
    if cuts is None:
        cuts = [cut.name for cut in prepared.context.card_of(model).select("paper")]
    return plain_loop.Hooked(network, network.net, cuts)


def order(count: int, seed: int) -> Callable[[int], Tensor]:
    """Epoch from 1 -> the order of images in it, (count,), as our own loop has it."""

    def order(epoch: int) -> Tensor:
        generator = torch.Generator().manual_seed(derive("stitch order", seed, epoch))
        return torch.randperm(count, generator=generator)

    return order
