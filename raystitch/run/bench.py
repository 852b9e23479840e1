"""What all cells of a unit share, and the row of results that each of them becomes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from raystitch.data.images import LabelledImages
from raystitch.names import Augment
from raystitch.run.activations import Frozen, Network, Recomputed, answering
from raystitch.run.iri_sets import read_set, set_figures
from raystitch.run.iri_specs import IriSetSpec
from raystitch.run.measures import Measures, Shared
from raystitch.run.rows import Row, identity_columns, outcome_columns
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
from raystitch.sweep.keeping import LOGITS, taps
from raystitch.zoo.augment import training_images
from raystitch.zoo.cuts import Front, Tail
from raystitch.zoo.modes import private_copy

Half = TypeVar("Half", Front, Tail)

SIDES = ("front", "end")


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
        self.sets = workshop.activations
        self.front = workshop.frozen(unit.front_model, self.training.bn)
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
        self.sets.begin()
        test = self.workshop.test_images(test_marker)
        whole = self.sets(self.front, (self.front_cut.name, LOGITS), test, shared=True)
        half = self._private(self.front.network.front(self.front_cut.name))
        front = self._front_side(half, test, whole)
        ends = {cell.end_model: cell for cell in cells}
        sides = {model: self._end_side(model, cells, test) for model in ends}
        test_labels = torch.from_numpy(test.labels)
        live = self._live(half, cells) if self.training.live else None
        unit_job = self._job(front, sides, test_labels, live)
        jobs = {cell.key: self._cell_job(cell) for cell in cells}
        fit = UnitFit(unit_job, list(jobs.values()), states)
        shared = {
            "accuracy_front": self._accuracy_front(whole, test_labels),
            "test_images": len(test),
            "iri_fidelity": self._without_stitch(self.front, front.own, self.inputs["front"]),
            "keep_error": self.sets.error if self.sets.compute.keep != "float32" else None,
            **self.figures,
        }
        backward = {
            model: self._without_stitch(self._frozen(model), side.own, self.inputs["end"])
            for model, side in sides.items()
        }
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
        self.figures = set_figures(shard)
        return shard.images

    def _frozen(self, model: str) -> Frozen:
        return self.workshop.frozen(model, self.training.bn)

    def _private(self, half: Half) -> Half:
        """The half itself, or a copy of it where training could move it."""
        training = self.training
        return private_copy(half) if training.bn == "batch" or training.dropout else half

    def _front_side(self, half: Front, test: LabelledImages, whole: Answers) -> Side:
        """whole: what the whole front answers on the test images, its cut among it."""
        device, own, cut = self.workshop.device, self.inputs["front"], self.front_cut
        if self.unit.control is not None:
            seed = self.unit.seed
            stands_in = ClassNoise(cut, own.labels, own.index, seed, "own", device)
            return Side(
                stands_in,
                ClassNoise(cut, test.labels, test.index, seed, "test", device),
                stands_in if self._real_start() else None,
            )
        if self.training.bn == "batch":  # it drifts, and so nothing of it can be kept
            answer = self._activation(half)
            sets = (own, test, *([self.real] if self._real_start() else []))
            return Side(*(Recomputed(answer, images.images, device) for images in sets))
        return Side(
            self._own_answers(self.front, (cut.name,), own),
            whole,
            self._on_real(self.front, (cut.name,)) if self._real_start() else None,
        )

    def _own_answers(
        self, network: Frozen, places: tuple[str, ...], images: LabelledImages
    ) -> Answers:
        """On a side's inputs: real images are other units' too, IRIs are asked for logits later."""
        real = images is self.real
        along = (LOGITS,) if self.figures and not real else ()
        return self.sets(network, places, images, shared=real, along=along)

    def _on_real(self, network: Frozen, places: tuple[str, ...]) -> Answers:
        return self.sets(network, places, self.real, shared=True)

    def _activation(self, half: Front) -> Network:
        return lambda images: Answer({self.front_cut.name: half(images)})

    def _real_start(self) -> bool:
        return self.training.init_images == "real"

    def _end_side(self, model: str, cells: Sequence[Cell], test: LabelledImages) -> Side:
        network, places = self._frozen(model), (*_taps(model, cells), LOGITS)
        return Side(
            self._own_answers(network, places, self.inputs["end"]),
            self.sets(network, (LOGITS,), test, shared=True),
            self._on_real(network, places) if self._real_start() else None,
        )

    def _live(self, half: Front, cells: Sequence[Cell]) -> Live:
        """The halves on training batches, the front's the one that is scored too."""
        ends: dict[str, LiveHalf] = {}
        for model in dict.fromkeys(cell.end_model for cell in cells):
            taps = _taps(model, cells)
            observer = self._private(self._frozen(model).network.observer(taps))
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
        network = self._frozen(cell.end_model).network
        return CellJob(
            cell.key,
            cell.objective,
            cell.end_model,
            self.workshop.context.card_of(cell.end_model).cut(cell.end_cut),
            cell.fula_cuts,
            self._private(network.tail(cell.end_cut, cell.fula_cuts)),
        )

    def _without_stitch(self, network: Frozen, own: Answers, given: LabelledImages) -> float | None:
        """Agreement of a network on IRIs with itself on their images, in percent.

        Of the front it says how near the IRIs are, of an end whether it shares the invariances.
        own: what it answers on the inputs ``given``; None where the protocol has no IRIs.
        """
        if not self.figures:
            return None
        at_hand = given is self.own and own(torch.arange(1)).logits is not None
        on_iris = own if at_hand else self.sets(network, (LOGITS,), self.own, shared=False)
        # Agreement asks for no labels, and a front may know other classes than these images'.
        labels = torch.zeros(len(self.own), dtype=torch.int64)
        return answer_scores(on_iris, self._on_real(network, (LOGITS,)), labels)["agreement"]

    def _row(
        self, cell: Cell, found: Finished, shared: Row, backward: Mapping[str, float | None]
    ) -> Row:
        return {
            **identity_columns(cell, self.workshop),
            **shared,
            "stitch_images": len(self.own),
            "backward": backward[cell.end_model],
            **outcome_columns(found),
        }


def _taps(model: str, cells: Sequence[Cell]) -> tuple[str, ...]:
    """The cuts that the cells of one end compare."""
    return taps(cell for cell in cells if cell.end_model == model)
