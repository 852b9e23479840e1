"""What is measured of a cell that has ended, beside its agreement on the test images."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from raystitch.data.images import LabelledImages
from raystitch.data.shards import Shard
from raystitch.evaluation import Evaluation
from raystitch.run.activations import Network, Recomputed, observed
from raystitch.run.attacked import evenly, robust_scores
from raystitch.run.iri_sets import set_figures
from raystitch.run.workshop import Workshop
from raystitch.stitching.evaluate import Answers, answer_scores, stitched_scores
from raystitch.stitching.jobs import Finished, Side, Tail
from raystitch.stitching.similarity import cka_of_grams, cka_unbiased_of_grams, gram
from raystitch.stitching.spectrum import spectrum_scores
from raystitch.sweep.cells import Cell, Unit
from raystitch.sweep.keeping import COMPUTE_BATCH
from raystitch.zoo.pixels import to_unit

Row = dict[str, Any]
Stitched = Callable[[Tensor], Tensor]
"""The front's activation to the logits of the stitched network."""


@dataclass(frozen=True)
class Shared:
    """What the cells that are measured together share: a unit's, of one test marker.

    evaluation: what applies to them; half: images to the front's activation, as it is scored;
    front: what the whole front answers on the test images; ends: what each end does; real, iris:
    images and their IRIs, None where the protocol has none; test_iris: IRIs of the test images,
    where they are asked for.
    """

    unit: Unit
    evaluation: Evaluation
    test_marker: str | None
    test: LabelledImages
    half: Network
    front: Answers
    ends: Mapping[str, Side]
    real: LabelledImages
    iris: LabelledImages | None
    test_iris: Shard | None


class Measures:
    """The further figures of cells. What several of them need is computed once."""

    def __init__(self, shared: Shared, workshop: Workshop) -> None:
        self.shared, self.workshop = shared, workshop
        self.labels = torch.from_numpy(shared.test.labels)
        self.agreement_front = cache(self._agreement_front)
        self.representation = cache(self._representation)
        self.front_gram = cache(self._front_gram)
        self.marked = cache(self._marked)

    def of(self, cell: Cell, tail: Tail, found: Finished) -> Row:
        """Columns of the cell's row; its `seconds` with the time that this took."""
        stitch = found.stitch
        if stitch is None:
            return {}
        began = time.perf_counter()

        def stitched(activation: Tensor) -> Tensor:
            return tail(stitch(activation))

        evaluation = self.shared.evaluation
        figures: Row = {
            **spectrum_scores(stitch.weight),
            "agreement_front": self.agreement_front(cell.end_model),
        }
        if evaluation.representation is not None:
            figures |= self.representation(cell.end_model, cell.end_cut)
        if evaluation.excessive:
            figures |= self._excessive(cell, stitched, found.scores["agreement"])
        if evaluation.robust is not None:
            figures |= self._robust(cell, stitched)
        if self.shared.test_iris is not None:
            figures |= self._test_iris(self.shared.test_iris, cell, stitched)
        return {**figures, "seconds": found.seconds + time.perf_counter() - began}

    def _agreement_front(self, end: str) -> float | None:
        """Of the front alone, whole and without a stitch, with the end; None where nothing stands
        for it (something else does, or it knows other classes).
        """
        card_of, unit = self.workshop.context.card_of, self.shared.unit
        if unit.control is not None:
            return None
        if card_of(unit.front_model).classes != card_of(end).classes:
            return None
        end_answers = self.shared.ends[end].test
        return answer_scores(self.shared.front, end_answers, self.labels)["agreement"]

    def _excessive(self, cell: Cell, stitched: Stitched, agreement: float) -> Row:
        """Matched markers less rolled ones: the same images, each with the next class's marker."""
        found = {
            roll: self._agreement_on(self.marked(roll), cell, stitched)
            for roll in (0, 1)
            if roll or self.shared.test_marker is None
        }
        matched, rolled = found.get(0, agreement), found[1]
        return {
            "agreement_matched": matched,
            "agreement_rolled": rolled,
            "excessive_agreement": matched - rolled,
        }

    def _marked(self, roll: int) -> LabelledImages:
        """Test images with the pair's marker, of the test images or else of the stitch's."""
        marker = self.shared.test_marker or self.shared.unit.stitch_marker
        return self.workshop.test_images(marker, roll)

    def _front_on(self, images: LabelledImages) -> Answers:
        """Not kept: private halves drift between the epochs in which cells end."""
        return Recomputed(self.shared.half, images.images, self.workshop.device)

    def _end_on(self, model: str, images: LabelledImages) -> Answers:
        network = observed(self.workshop.lean_network(model), ())
        return Recomputed(network, images.images, self.workshop.device)

    def _test_iris(self, shard: Shard, cell: Cell, stitched: Stitched) -> Row:
        """h and g both on the IRIs of the test images."""
        assert np.array_equal(shard.images.index, self.shared.test.index)
        figures = set_figures(shard)
        found = self._agreement_on(shard.images, cell, stitched)
        return {"agreement_test_iris": found, "test_iri_residual": figures["iri_residual"]}

    def _agreement_on(self, images: LabelledImages, cell: Cell, stitched: Stitched) -> float:
        """Agreement of h and g on images that carry the labels of the test images."""
        front, end = self._front_on(images), self._end_on(cell.end_model, images)
        cut = self.shared.unit.front_cut
        return stitched_scores(stitched, front, cut, end, self.labels)["agreement"]

    def _robust(self, cell: Cell, stitched: Stitched) -> Row:
        assert self.shared.evaluation.robust is not None
        return robust_scores(
            self.shared.test,
            self.shared.half,
            self.shared.unit.front_cut,
            stitched,
            observed(self.workshop.lean_network(cell.end_model), ()),
            self.shared.evaluation.robust,
            self.workshop.device,
        )

    def _representation(self, end: str, cut: str) -> Row:
        """CKA of the frozen networks at the two cuts; STIR of the end's on images and IRIs."""
        tested = self._gram(end, cut, self._compared(self.shared.test))
        found: Row = {
            "cka": cka_of_grams(self.front_gram(), tested),
            "cka_unbiased": cka_unbiased_of_grams(self.front_gram(), tested),
        }
        if self.shared.iris is None:
            return found
        real, iris = (
            self._gram(end, cut, self._compared(images))
            for images in (self.shared.real, self.shared.iris)
        )
        stir = {
            "stir": cka_of_grams(real, iris),
            "stir_unbiased": cka_unbiased_of_grams(real, iris),
        }
        return found | stir

    def _front_gram(self) -> Tensor:
        unit = self.shared.unit
        return self._gram(unit.front_model, unit.front_cut, self._compared(self.shared.test))

    def _compared(self, images: LabelledImages) -> LabelledImages:
        assert self.shared.evaluation.representation is not None
        return images.select(evenly(len(images), self.shared.evaluation.representation.images))

    def _gram(self, model: str, cut: str, images: LabelledImages) -> Tensor:
        """Gram matrix of a network's activations at a cut."""
        network = self.workshop.lean_network(model).front(cut)
        chunks = np.array_split(images.images, range(COMPUTE_BATCH, len(images), COMPUTE_BATCH))
        with torch.no_grad():
            parts = [network(to_unit(chunk, self.workshop.device)) for chunk in chunks]
        return gram(torch.cat(parts))
