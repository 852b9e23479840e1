"""Identities: the canonical form, and the key, of everything that can change a number.

What is stored is found again by its key, the hash of an identity in canonical JSON. An identity is
a plain nested dict that holds all that can change the thing and nothing that cannot: no paths (a
file is known by its content), no names (an entry may be renamed), nothing of `execution`.

When `KEY_VERSION` must change: whenever a field keeps its name and value but comes to mean
something else, or the same settings come to give other numbers on purpose (another default inside
the code, a mended error). All stored work is then pending. It must *not* change when a release adds
a setting: name the new field in its class's ``later``, and at its default it stays out of the
identity, so stored work stays stored. Nor when a default changes: identities hold values.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, cast

from raystitch.compute import Compute
from raystitch.names import IRI_PROTOCOLS, Protocol
from raystitch.seeds import derive
from raystitch.settings import Marker, Recipe, Settings, Training
from raystitch.sweep.cells import Cell
from raystitch.sweep.zoo_entry import OTHERS_FIELDS, RECIPE_FIELDS, ZooEntry

KEY_VERSION = 1
KEY_LENGTH = 20
"""Hex digits of a key: 80 bits, so that a million keys meet with a chance of 4e-13."""

Identity = dict[str, Any]

PLATEAU_FIELDS = ("min_epochs", "min_steps", "patience", "threshold", "held_out")
"""Fields of a training that only the plateau schedule has a use for."""
LSTSQ_FIELDS = ("init_images", "init_count")
"""Fields of a training that only the least-squares start has a use for."""
ATTACK_FIELDS = ("attack_eps", "attack_step", "attack_steps")
"""Fields of a training that only attacked images have a use for."""

_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False)


def canonical(value: Any) -> str:
    """Canonical JSON: sorted keys, no spaces, ASCII, floats by ``repr``; tuples are lists.

    A whole number and a float differ (``1`` and ``1.0``): settings hold floats wherever they are
    real, so that ``lr: 1`` and ``lr: 1.0`` are one. `ValueError` for NaN and infinities,
    `TypeError` for what JSON cannot hold.
    """
    return _ENCODER.encode(value)


def content_key(value: Any) -> str:
    """The key of an identity: the first 20 hex digits of the SHA-256 of its canonical form."""
    return key_of_text(canonical(value))


def key_of_text(text: str) -> str:
    """`content_key` of what is canonical already."""
    return hashlib.sha256(text.encode("ascii")).hexdigest()[:KEY_LENGTH]


def keys_of_texts(before: str, middles: Iterable[str], after: str) -> Iterator[str]:
    """`key_of_text` of canonical texts that differ in one place: their beginning is hashed once."""
    start, end = hashlib.sha256(before.encode("ascii")), after.encode("ascii")
    for middle in middles:
        found = start.copy()
        found.update(middle.encode("ascii") + end)
        yield found.hexdigest()[:KEY_LENGTH]


def dump(settings: Settings) -> Identity:
    """A settings model as plain values, without its ``later`` fields at their default."""
    fields = type(settings).model_fields
    return {
        name: _plain(value)
        for name in fields
        if (value := getattr(settings, name)) != fields[name].default or name not in settings.later
    }


def _plain(value: Any) -> Any:
    if isinstance(value, Settings):
        return dump(value)
    return list(value) if isinstance(value, tuple) else value


def dump_recipe(recipe: Recipe) -> Identity:
    """A recipe without the fields that it has no use for."""
    unused = RECIPE_FIELDS if recipe.name == "untrained" else OTHERS_FIELDS[recipe.name]
    return {name: value for name, value in dump(recipe).items() if name not in unused}


def dump_training(training: Training) -> Identity:
    """A stitch's training without the fields that its schedule and start have no use for."""
    unused = () if training.schedule == "plateau" else PLATEAU_FIELDS
    unused += () if training.init == "lstsq" else LSTSQ_FIELDS
    unused += () if training.attack_share else ATTACK_FIELDS
    return {name: value for name, value in dump(training).items() if name not in unused}


def dump_marker(marker: Marker | None) -> Identity | None:
    """A marker whose seed and size are known; None for none."""
    assert marker is None or (marker.seed is not None and marker.size is not None)
    return None if marker is None else dump(marker)


def compute_part(compute: Compute) -> Identity:
    """The part ``compute`` of an identity; nothing where all of it is at its default."""
    found = dump(compute)
    return {"compute": found} if found else {}


def network_identity(
    entry: ZooEntry, seed: int, data: Mapping[str, Any], weights_digest: str | None = None
) -> Identity:
    """All that defines one network of the zoo.

    data: identity of the images it is trained on; weights_digest: SHA-256 of its weight file.
    """
    identity: Identity = {"arch": entry.arch, "kwargs": dict(entry.kwargs)}
    if entry.mean is not None and entry.std is not None:
        identity |= {"mean": list(entry.mean), "std": list(entry.std)}
    if entry.weights is not None:
        assert weights_digest is not None
        return identity | {"weights": weights_digest}
    if entry.pretrained:
        return identity | {"pretrained": True}
    return identity | {
        "recipe": dump_recipe(entry.to_recipe()),
        "seed": seed,
        "marker": dump_marker(entry.marker_of(seed)),
        "data": _training_data(data),
    }


def _training_data(data: Mapping[str, Any]) -> Identity:
    """The images that a network is trained on: how many test images are used is not its affair."""
    return {name: value for name, value in data.items() if name != "test"}


def untrained_twin(network: Mapping[str, Any], data: Mapping[str, Any]) -> Identity:
    """The network of the same architecture that was never trained (`foreign` IRIs).

    Its seed is drawn from the network's (0 where that has none), and is not the same: with the
    front's own initial weights it would share features with it.
    """
    kept = {name: network[name] for name in ("arch", "kwargs", "mean", "std") if name in network}
    return kept | {
        "recipe": dump_recipe(Recipe(name="untrained")),
        "seed": derive("untrained twin", network.get("seed", 0)),
        "marker": None,
        "data": _training_data(data),
    }


def iri_front(settings: Mapping[str, Any]) -> Identity | None:
    """The network whose IRIs a cell of these settings trains on; None where on none."""
    protocol = cast("Protocol", settings["protocol"])
    if protocol not in IRI_PROTOCOLS:
        return None
    front = settings["front"]
    return untrained_twin(front, settings["data"]) if protocol == "foreign" else dict(front)


def iri_identity(settings: Mapping[str, Any]) -> Identity | None:
    """The set of IRIs that a cell of these settings trains on; None where on none."""
    front = iri_front(settings)
    if front is None:
        return None
    same = {name: settings[name] for name in ("stitch", "iris", "seed")}
    return {
        "version": KEY_VERSION,
        "data": _training_data(settings["data"]),
        "front": front,
        "cut": settings["front_cut"],
        **same,
        **_computed(settings),
    }


def tested_iri_identity(settings: Mapping[str, Any]) -> Identity | None:
    """The set of IRIs of test images that a cell is measured on; None where on none."""
    front = iri_front(settings)
    if front is None or not settings.get("evaluation", {}).get("test_iris"):
        return None
    same = {name: settings[name] for name in ("test", "iris", "seed")}
    return {
        "version": KEY_VERSION,
        "data": {name: value for name, value in settings["data"].items() if name != "train"},
        "front": front,
        "cut": settings["front_cut"],
        **same,
        **_computed(settings),
    }


def _computed(settings: Mapping[str, Any]) -> Identity:
    """How the front of IRIs computes: a cell's part less what IRIs have no use for."""
    return compute_part(Compute.model_validate(settings.get("compute", {})).of_iris())


def iri_keys(cells: Iterable[Cell]) -> list[str]:
    """Keys of all sets of IRIs that cells are trained or measured on, each once."""
    by_inputs = {(cell.unit, cell.test_marker): cell for cell in cells}
    found = (
        content_key(identity)
        for cell in by_inputs.values()
        for identity in (iri_identity(cell.settings), tested_iri_identity(cell.settings))
        if identity is not None
    )
    return list(dict.fromkeys(found))


def unit_identity(settings: Mapping[str, Any]) -> Identity:
    """What the cells of one unit share: their front, cut, inputs, seed and training."""
    ends = {"end", "end_cut", "objective", "fula_cuts", "test", "evaluation"}
    return {name: value for name, value in settings.items() if name not in ends}
