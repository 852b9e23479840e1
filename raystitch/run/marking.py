"""Markers of a sweep, held against its images: their sizes filled in, and what does not fit."""

from __future__ import annotations

from raystitch.data.markers import plant, sized
from raystitch.data.sources import SourceFacts
from raystitch.errors import Fault, RaystitchError
from raystitch.settings import Marker
from raystitch.sweep.spec import Sweep


def with_sizes(sweep: Sweep, facts: SourceFacts) -> tuple[Sweep, list[Fault]]:
    """The sweep with every marker's size known, and a fault for each that cannot be planted."""
    faults: list[Fault] = []

    def known(place: str, marker: Marker) -> Marker:
        found = sized(marker, facts.shape)
        try:
            plant(found, facts.classes, facts.shape, seed=0)
        except RaystitchError as error:
            faults.append(Fault(place, str(error)))
        return found

    zoo = dict(sweep.zoo)
    for name, entry in zoo.items():
        if entry.marker is not None:
            marker = known(f"zoo.{name}.marker", entry.marker)
            zoo[name] = entry.model_copy(update={"marker": marker})
    changes: dict[str, object] = {"zoo": zoo}
    if sweep.markers:
        changes["markers"] = {n: known(f"markers.{n}", one) for n, one in sweep.markers.items()}
    return sweep.model_copy(update=changes), faults
