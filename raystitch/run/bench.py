"""What all cells of a unit share, and the row of results that each of them becomes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from raystitch import __version__
from raystitch.data.images import LabelledImages
from raystitch.names import Augment
from raystitch.run.activations import ByteBudget, Network, answering, answers, observed
from raystitch.run.iri_sets import read_set, set_figures
from raystitch.run.iri_specs import IriSetSpec
from raystitch.run.measures import Measures, Shared
from raystitch.run.work import UnitWork
from raystitch.run.workshop import Workshop
from raystitch.stitching.controls import ClassNoise
from raystitch.stitching.evaluate import Answers, answer_scores
from raystitch.stitching.fit import UnitFit
from raystitch.stitching.jobs import CellJob, Finished, Side, UnitJob
from raystitch.stitching.live import Images, Live, LiveHalf
from raystitch.stitching.objectives import Answer
from raystitch.stitching.protocols import PROTOCOLS, noise_images
from raystitch.stitching.state import CellState
from raystitch.sweep.cells import Cell
from raystitch.sweep.keys import canonical
from raystitch.zoo.augment import training_images
from raystitch.zoo.cuts import CutNetwork, Front, Tail
from raystitch.zoo.modes import private_copy

Row = dict[str, Any]
Half = TypeVar("Half", Front, Tail)

SIDES = ("front", "end")


def failed_rows(cells: Sequence[Cell], reason: str, workshop: Workshop) -> list[Row]:
    """A failed row for every one of these cells."""
    outcomes = [Finished(cell.key, None, 0, 0, 0.0, "failed", error=reason) for cell in cells]
    return [
        {**_identity(cell, workshop), **_outcome(found)}
        for cell, found in zip(cells, outcomes, strict=True)
    ]


@dataclass(frozen=True)
class Epoch:
    """A fit after one of its epochs, the cells that ended in it, and the row of each."""

    fit: UnitFit
    ended: list[Finished]
    rows: list[Row]


class Bench:
    """What all cells of a unit share: inputs, front, and what the networks answer on them."""

    def __init__(self, work: UnitWork, workshop: Workshop) -> None:
        unit = work.unit
        self.work, self.unit, self.workshop = work, unit, workshop
        self.sweep = workshop.context.sweep.varied(unit.variant)
        self.training = self.sweep.training_under(unit.protocol)
        self.rule = PROTOCOLS[unit.protocol]
        self.front = self._network(unit.front_model)
        self.front_cut = workshop.context.card_of(unit.front_model).cut(unit.front_cut)
        self.real = workshop.stitch_images(unit.stitch_marker)
        self.figures: Row = {}
        self.own = self._own(work.iri_set)
        self.inputs = {side: self.real if self.rule.real == side else self.own for side in SIDES}

    def run(self, cells: Sequence[Cell], states: Mapping[str, CellState]) -> Iterator[Epoch]:
        """Train these cells, which share their test images and the epoch they stand at.

        states: by key, of all of them or of none. Yields after the start and after every epoch.
        """
        (test_marker,) = {cell.test_marker for cell in cells}
        budget = ByteBudget(self.sweep.execution.activation_bytes)
        test = self.workshop.test_images(test_marker)
        whole = answers(
            observed(self.front, (self.front_cut.name,)), test.images, self.workshop.device, budget
        )
        half = self._private(self.front.front(self.front_cut.name))
        front = self._front_side(half, test, whole, budget)
        ends = {cell.end_model: cell for cell in cells}
        sides = {model: self._end_side(model, cells, test, budget) for model in ends}
        test_labels = torch.from_numpy(test.labels)
        live = self._live(half, cells) if self.training.live else None
        unit_job = self._job(front, sides, test_labels, live)
        jobs = {cell.key: self._cell_job(cell) for cell in cells}
        fit = UnitFit(unit_job, list(jobs.values()), states)
        shared = {
            "accuracy_front": self._accuracy_front(whole, test_labels),
            "test_images": len(test),
            **self.figures,
        }
        backward = {model: self._backward(model) for model in ends}
        by_key = {cell.key: cell for cell in cells}
        measures = Measures(self._shared(test_marker, test, half, whole, sides), self.workshop)

        def row(found: Finished) -> Row:
            cell = by_key[found.key]
            return self._row(cell, found, shared, backward) | measures.of(
                cell, jobs[cell.key].tail, found
            )

        def epoch(outcomes: Iterator[Finished]) -> Epoch:
            both = [(found, row(found)) for found in outcomes]
            return Epoch(fit, [found for found, _ in both], [row for _, row in both])

        yield epoch(fit.start())
        while fit.live:
            yield epoch(fit.epoch())

    def _shared(
        self,
        test_marker: str | None,
        test: LabelledImages,
        half: Front,
        whole: Answers,
        ends: Mapping[str, Side],
    ) -> Shared:
        unit = self.unit
        evaluation = self.sweep.evaluation_of(
            unit.stitch_marker, test_marker, unit.protocol, unit.control
        )
        iris = self.own if self.figures else None
        test_set = self.work.test_sets.get(test_marker)
        return Shared(
            unit,
            evaluation,
            test_marker,
            test,
            self._activation(half),
            whole,
            ends,
            self.real,
            iris,
            None if test_set is None else read_set(test_set, self.workshop.context),
        )

    def _accuracy_front(self, whole: Answers, test_labels: Tensor) -> float | None:
        """None where something stands in for the front, or where it knows another task."""
        told = self.unit.control is None and self.workshop.same_task(self.unit.front_model)
        return answer_scores(whole, whole, test_labels)["accuracy"] if told else None

    def _own(self, iri_set: IriSetSpec | None) -> LabelledImages:
        """The inputs that the protocol says."""
        inputs = self.rule.inputs
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

    def _network(self, model: str) -> CutNetwork:
        return self.workshop.lean_network(model, self.training.bn)

    def _private(self, half: Half) -> Half:
        """The half itself, or a copy of it where training could move it."""
        training = self.training
        return private_copy(half) if training.bn == "batch" or training.dropout else half

    def _front_side(
        self, half: Front, test: LabelledImages, whole: Answers, budget: ByteBudget
    ) -> Side:
        """whole: what the whole front answers on the test images, its cut among it."""
        device, own = self.workshop.device, self.inputs["front"]
        if self.unit.control is not None:
            seed, cut = self.unit.seed, self.front_cut
            stands_in = ClassNoise(cut, own.labels, own.index, seed, "own", device)
            return Side(
                stands_in,
                ClassNoise(cut, test.labels, test.index, seed, "test", device),
                stands_in if self._real_start() else None,
            )
        answer = self._activation(half)
        drifts = self.training.bn == "batch"
        budget = ByteBudget(0) if drifts else budget
        return Side(
            answers(answer, own.images, device, budget),
            answers(answer, test.images, device, budget) if drifts else whole,
            answers(answer, self.real.images, device, budget) if self._real_start() else None,
        )

    def _activation(self, half: Front) -> Network:
        return lambda images: Answer({self.front_cut.name: half(images)})

    def _real_start(self) -> bool:
        return self.training.init_images == "real"

    def _end_side(
        self, model: str, cells: Sequence[Cell], test: LabelledImages, budget: ByteBudget
    ) -> Side:
        network = observed(self._network(model), _taps(model, cells))
        plain = observed(self._network(model), ())
        device = self.workshop.device
        return Side(
            answers(network, self.inputs["end"].images, device, budget),
            answers(plain, test.images, device, budget),
            answers(network, self.real.images, device, budget) if self._real_start() else None,
        )

    def _live(self, half: Front, cells: Sequence[Cell]) -> Live:
        """The halves on training batches, the front's the one that is scored too."""
        ends: dict[str, LiveHalf] = {}
        for model in dict.fromkeys(cell.end_model for cell in cells):
            taps = _taps(model, cells)
            observer = self._private(self._network(model).observer(taps))
            ends[model] = LiveHalf(observer, answering(observer, taps))
        front_images = self._views("front")
        same = self.inputs["front"] is self.inputs["end"]
        return Live(
            front_images,
            front_images if same else self._views("end"),
            LiveHalf(half, self._activation(half)),
            ends,
            self.training,
            self.unit.seed,
        )

    def _views(self, side: str) -> Images:
        """The inputs of a side as training sees them; markers lie on top of random views."""
        device, given = self.workshop.device, self.inputs[side]
        marker, plain = None, given
        if given is self.real and self.training.augment != "none":
            marker = self.workshop.marker(self.unit.stitch_marker)
            plain = self.workshop.stitch_images(None)

        def images(positions: Tensor, kind: Augment, generator: torch.Generator) -> Tensor:
            chosen = positions.numpy()
            places = np.random.default_rng(generator.initial_seed())
            labels = given.labels[chosen]
            return training_images(
                plain.images[chosen], labels, kind, generator, marker, places, device
            )

        return images

    def _job(
        self, front: Side, ends: Mapping[str, Side], test_labels: Tensor, live: Live | None
    ) -> UnitJob:
        return UnitJob(
            self.front_cut,
            front,
            ends,
            torch.from_numpy(self.own.labels) if self.rule.labelled else None,
            test_labels,
            self.training,
            self.sweep.budget,
            self.unit.seed,
            self.workshop.device,
            live,
        )

    def _cell_job(self, cell: Cell) -> CellJob:
        network = self._network(cell.end_model)
        return CellJob(
            cell.key,
            cell.objective,
            cell.end_model,
            self.workshop.context.card_of(cell.end_model).cut(cell.end_cut),
            cell.fula_cuts,
            self._private(network.tail(cell.end_cut, cell.fula_cuts)),
        )

    def _backward(self, model: str) -> float | None:
        """Agreement of g(x′) with g(x): does the end share the front's invariances?"""
        return self._without_stitch(model, self.own) if self.figures else None

    def _without_stitch(self, model: str, iris: LabelledImages) -> float:
        """Agreement of a network on IRIs with itself on their images, in percent."""
        network = observed(self._network(model), ())
        # Agreement asks for no labels, and a front may know other classes than these images'.
        device, labels = self.workshop.device, torch.zeros(len(iris), dtype=torch.int64)
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


def _taps(model: str, cells: Sequence[Cell]) -> tuple[str, ...]:
    """The cuts that the cells of one end compare."""
    of_end = [cell for cell in cells if cell.end_model == model]
    return tuple(dict.fromkeys(cut for cell in of_end for cut in (cell.end_cut, *cell.fula_cuts)))


def _identity(cell: Cell, workshop: Workshop) -> Row:
    """A row's columns that say which cell it is and what ran it."""
    sweep = workshop.context.sweep.varied(cell.variant)
    names = (
        *("key", "unit", "front_model", "front_cut", "front_cut_index", "end_model", "end_cut"),
        *("end_cut_index", "objective", "protocol", "seed", "stitch_marker", "test_marker"),
        *("control", "variant"),
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
