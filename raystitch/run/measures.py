"""What is measured of a cell that has ended, beside its agreement on the test images."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import cache
from typing import Any

from torch import Tensor

from raystitch.run.workshop import Workshop
from raystitch.stitching.evaluate import Answers, answer_scores
from raystitch.stitching.jobs import Finished, Side
from raystitch.stitching.spectrum import spectrum_scores
from raystitch.sweep.cells import Cell, Unit

Row = dict[str, Any]


class Measures:
    """The further figures of the cells of a unit that share their test images.

    front: what the whole front answers on the test images; ends: what each end does.
    """

    def __init__(
        self,
        unit: Unit,
        workshop: Workshop,
        front: Answers,
        ends: Mapping[str, Side],
        test_labels: Tensor,
    ) -> None:
        self.unit, self.workshop = unit, workshop
        self.front, self.ends, self.test_labels = front, ends, test_labels
        self.agreement_front = cache(self._agreement_front)

    def of(self, cell: Cell, found: Finished) -> Row:
        """Columns of the cell's row; its `seconds` with the time that this took."""
        if found.stitch is None:
            return {}
        began = time.perf_counter()
        figures: Row = {
            **spectrum_scores(found.stitch.weight),
            "agreement_front": self.agreement_front(cell.end_model),
        }
        return {**figures, "seconds": found.seconds + time.perf_counter() - began}

    def _agreement_front(self, end: str) -> float | None:
        """Of the front alone, whole and without a stitch, with the end; None where nothing stands
        for it (something else does, or it knows other classes).
        """
        card_of = self.workshop.context.card_of
        if self.unit.control is not None:
            return None
        if card_of(self.unit.front_model).classes != card_of(end).classes:
            return None
        return answer_scores(self.front, self.ends[end].test, self.test_labels)["agreement"]
