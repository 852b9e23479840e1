"""What all cells of a unit share, and the row of results that each of them becomes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from raystitch import __version__
from raystitch.data.images import LabelledImages
from raystitch.run.activations import ByteBudget, Network, answers
from raystitch.run.iri_sets import read_set, set_figures
from raystitch.run.iri_specs import IriSetSpec
from raystitch.run.workshop import Workshop
from raystitch.stitching.evaluate import answer_scores
from raystitch.stitching.fit import UnitFit
from raystitch.stitching.jobs import CellJob, Finished, Side, UnitJob
from raystitch.stitching.objectives import Answer
from raystitch.stitching.protocols import PROTOCOLS, noise_images
from raystitch.stitching.state import CellState
from raystitch.sweep.cells import Cell, Unit
from raystitch.sweep.keys import canonical
from raystitch.zoo.cuts import CutNetwork

Row = dict[str, Any]


def failed_rows(cells: Sequence[Cell], reason: str, workshop: Workshop) -> list[Row]:
    """A failed row for every one of these cells."""
    outcomes = [Finished(cell.key, None, 0, 0, 0.0, "failed", error=reason) for cell in cells]
    return [
        {**_identity(cell, workshop), **_outcome(found)}
        for cell, found in zip(cells, outcomes, strict=True)
    ]


@dataclass(frozen=True)
class Epoch:
    """A fit after one of its epochs, and the rows of the cells that ended in it."""

    fit: UnitFit
    rows: list[Row]


class Bench:
    """What all cells of a unit share: inputs, front, and what the networks answer on them."""

    def __init__(self, unit: Unit, iri_set: IriSetSpec | None, workshop: Workshop) -> None:
        self.unit, self.workshop = unit, workshop
        self.front = workshop.cut_network(unit.front_model)
        self.front_cut = workshop.context.card_of(unit.front_model).cut(unit.front_cut)
        self.real = workshop.stitch_images(unit.stitch_marker)
        self.figures: Row = {}
        self.own = self._own(iri_set)
        self.labelled = PROTOCOLS[unit.protocol].labelled

    def run(self, cells: Sequence[Cell], states: Mapping[str, CellState]) -> Iterator[Epoch]:
        """Train these cells, which share their test images and the epoch they stand at.

        states: by key, of all of them or of none. Yields after the start and after every epoch.
        """
        (test_marker,) = {cell.test_marker for cell in cells}
        budget = ByteBudget(self.workshop.context.sweep.execution.activation_bytes)
        test = self.workshop.test_images(test_marker)
        front = self._front_side(test, budget)
        ends = {cell.end_model: cell for cell in cells}
        sides = {model: self._end_side(model, cells, test, budget) for model in ends}
        test_labels = torch.from_numpy(test.labels)
        unit_job = self._job(front, sides, test_labels)
        fit = UnitFit(unit_job, [self._cell_job(c) for c in cells], states)
        shared = {
            "accuracy_front": answer_scores(front.test, front.test, test_labels)["accuracy"],
            "test_images": len(test),
            **self.figures,
        }
        backward = {model: self._backward(model) for model in ends}
        by_key = {cell.key: cell for cell in cells}

        def rows(ended: Iterator[Finished]) -> list[Row]:
            return [self._row(by_key[found.key], found, shared, backward) for found in ended]

        yield Epoch(fit, rows(fit.start()))
        while fit.live:
            yield Epoch(fit, rows(fit.epoch()))

    def _own(self, iri_set: IriSetSpec | None) -> LabelledImages:
        """The inputs that the protocol says."""
        inputs = PROTOCOLS[self.unit.protocol].inputs
        if inputs == "real":
            return self.real
        if inputs == "noise":
            pixels = noise_images(self.real.index, self.real.shape, self.unit.seed)
            return LabelledImages(pixels, self.real.labels, self.real.index)
        assert iri_set is not None
        shard = read_set(iri_set, self.workshop.context)
        assert np.array_equal(shard.images.index, self.real.index)
        assert np.array_equal(shard.images.labels, self.real.labels)
        self.figures = {
            **set_figures(shard),
            "iri_fidelity": self._without_stitch(self.unit.front_model, shard.images),
        }
        return shard.images

    def _front_side(self, test: LabelledImages, budget: ByteBudget) -> Side:
        device, cut = self.workshop.device, self.front_cut.name
        front = self.front.front(cut)

        def activation(images: Tensor) -> Answer:
            return Answer({cut: front(images)})

        real_start = self.workshop.context.sweep.training.init_images == "real"
        return Side(
            answers(activation, self.own.images, device, budget),
            answers(_observed(self.front, (cut,)), test.images, device, budget),
            answers(activation, self.real.images, device, budget) if real_start else None,
        )

    def _end_side(
        self, model: str, cells: Sequence[Cell], test: LabelledImages, budget: ByteBudget
    ) -> Side:
        of_end = [cell for cell in cells if cell.end_model == model]
        taps = dict.fromkeys(cut for cell in of_end for cut in (cell.end_cut, *cell.fula_cuts))
        network = _observed(self.workshop.cut_network(model), tuple(taps))
        plain = _observed(self.workshop.cut_network(model), ())
        device = self.workshop.device
        real_start = self.workshop.context.sweep.training.init_images == "real"
        return Side(
            answers(network, self.own.images, device, budget),
            answers(plain, test.images, device, budget),
            answers(network, self.real.images, device, budget) if real_start else None,
        )

    def _job(self, front: Side, ends: Mapping[str, Side], test_labels: Tensor) -> UnitJob:
        sweep = self.workshop.context.sweep
        return UnitJob(
            self.front_cut,
            front,
            ends,
            torch.from_numpy(self.own.labels) if self.labelled else None,
            test_labels,
            sweep.training,
            sweep.budget,
            self.unit.seed,
            self.workshop.device,
        )

    def _cell_job(self, cell: Cell) -> CellJob:
        network = self.workshop.cut_network(cell.end_model)
        return CellJob(
            cell.key,
            cell.objective,
            cell.end_model,
            self.workshop.context.card_of(cell.end_model).cut(cell.end_cut),
            cell.fula_cuts,
            network.tail(cell.end_cut, cell.fula_cuts),
        )

    def _backward(self, model: str) -> float | None:
        """Agreement of g(x′) with g(x): does the end share the front's invariances?"""
        return self._without_stitch(model, self.own) if self.figures else None

    def _without_stitch(self, model: str, iris: LabelledImages) -> float:
        """Agreement of a network on IRIs with itself on their images, in percent."""
        network = _observed(self.workshop.cut_network(model), ())
        device, labels = self.workshop.device, torch.from_numpy(self.real.labels)
        on_iris = answers(network, iris.images, device, ByteBudget(0))
        on_images = answers(network, self.real.images, device, ByteBudget(0))
        return answer_scores(on_iris, on_images, labels)["agreement"]

    def _row(
        self, cell: Cell, found: Finished, shared: Row, backward: Mapping[str, float | None]
    ) -> Row:
        return {
            **_identity(cell, self.workshop),
            **shared,
            "stitch_images": len(self.own),
            "backward": backward[cell.end_model],
            **_outcome(found),
        }


def _observed(network: CutNetwork, taps: tuple[str, ...]) -> Network:
    """The whole network as a function of images that answers at these cuts."""
    observer = network.observer(taps)

    def answer(images: Tensor) -> Answer:
        logits, activations = observer.observe(images)
        return Answer(dict(zip(taps, activations, strict=True)), logits)

    return answer


def _identity(cell: Cell, workshop: Workshop) -> Row:
    """A row's columns that say which cell it is and what ran it."""
    sweep = workshop.context.sweep
    names = (
        *("key", "unit", "front_model", "front_cut", "front_cut_index", "end_model", "end_cut"),
        *("end_cut_index", "objective", "protocol", "seed", "stitch_marker", "test_marker"),
    )
    return {
        **{name: getattr(cell, name) for name in names},
        "sweep": sweep.name,
        "settings": canonical(cell.settings),
        "data": sweep.data.source,
        "preset": sweep.preset,
        "budget": sweep.budget,
        "front_digest": workshop.card(cell.front_model).digest,
        "end_digest": workshop.card(cell.end_model).digest,
        "raystitch_version": __version__,
        "torch_version": str(torch.__version__),
        "device": str(workshop.device),
    }


def _outcome(found: Finished) -> Row:
    """A row's columns that say how the cell ended."""
    return {
        "status": "failed" if found.error else "ok",
        "error": found.error,
        "epochs": found.epochs,
        "steps": found.steps,
        "seconds": found.seconds,
        "stop_reason": found.stop_reason,
        "loss_init": found.loss_init,
        "loss": found.curve[-1] if found.curve else None,
        "curve": list(found.curve),
        "agreement_init": found.agreement_init,
        **found.scores,
    }
