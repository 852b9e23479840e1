"""All that can be checked before a sweep's first second of work, one line per check."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from raystitch.data import sources
from raystitch.data.catalogue import SPLITS, Split
from raystitch.errors import RaystitchError, StorageError
from raystitch.files import write_text
from raystitch.results.store import Storage
from raystitch.run.image_sets import Images, missing_images
from raystitch.run.planning import Context, Plan, Say, load_sweep, make_plan
from raystitch.run.status import cost, counted_line, in_bytes
from raystitch.sweep.cells import counts
from raystitch.sweep.keys import iri_keys

if TYPE_CHECKING:
    from raystitch.run.workshop import Workshop

ROW_BYTES = 12 * 1024
"""Bytes that one cell takes in rows and tensors, at most (measured: 6 KiB with a short curve)."""

MOST_DECODED = 150
"""Images of each split that are decoded: a second or two where they are photos."""

IMAGE_BYTES = 20
"""Bytes of an IRI beside its pixels: index, label, residuals, steps."""

FLOAT_BYTES = 4


@dataclass(frozen=True)
class Check:
    """One check: what was looked at, whether all is well, and what was found."""

    name: str
    ok: bool
    message: str


def check_sweep(
    path: Path,
    storage: Storage,
    *,
    limit_images: int | None = None,
    max_epochs: int | None = None,
    say: Say = print,
) -> Iterator[Check]:
    """Every check of a sweep, as it is made. Ends early where nothing further can be checked.

    Trains nothing, and leaves nothing in the storage but the cards of architectures.
    """
    writable = _run("storage", lambda: _try_to_write(storage.root))
    yield writable
    if not writable.ok:
        return
    plan: Plan | None = None

    def read() -> str:
        nonlocal plan
        context = load_sweep(
            path, storage, limit_images=limit_images, max_epochs=max_epochs, say=say
        )
        plan = make_plan(context)
        return counted_line(context.sweep.name, counts(plan.statuses))

    yield _run("sweep file", read)
    if plan is None:
        return
    yield from _check_plan(plan)


def _check_plan(plan: Plan) -> Iterator[Check]:
    for warning in plan.stored.warnings:
        yield Check("stored rows", False, warning)
    yield _run("disk", lambda: _disk(plan))
    from raystitch.run.workshop import Workshop

    workshop: Workshop | None = None

    def start() -> str:
        nonlocal workshop
        workshop = Workshop(plan.context)
        return str(workshop.device)

    yield _run("device", start)
    if workshop is None:
        return
    shop = workshop
    for split in SPLITS:
        name = "stitch images" if split == "train" else "test images"
        yield _run(name, lambda of=split: _labels(_drawn(shop, of), plan.context))
    for place, images in _encoded(plan.context).items():
        yield _run(f"images of {place}", lambda of=images: _decoded(shop, of))
    yield _run("memory", lambda: _memory(plan, shop))
    cuts = _cuts_in_use(plan)
    for model in plan.context.networks:
        yield _run(f"network {model}", lambda of=model: _network(shop, of, cuts[of]))


def _run(name: str, look: Callable[[], str]) -> Check:
    """The check that ``look`` makes: it says what is well, or raises."""
    try:
        return Check(name, True, look())
    except RaystitchError as error:
        return Check(name, False, str(error))


def _try_to_write(root: Path) -> str:
    probe = root / f".check-{os.getpid()}"
    try:
        write_text(probe, "")
        probe.unlink()
    except OSError as error:
        raise StorageError(
            f"{root} cannot be written: {error.strerror or error}. Pass another --storage."
        ) from error
    return f"{root} can be written"


def _disk(plan: Plan) -> str:
    needed, free = _bytes_to_store(plan), shutil.disk_usage(plan.context.storage.root).free
    found = f"about {in_bytes(needed)} to store, {in_bytes(free)} free"
    if needed > free:
        raise StorageError(f"{found}: make room, or pass another --storage.")
    return found


def _bytes_to_store(plan: Plan) -> int:
    """What is still to be written: weights, IRIs, rows and tensors."""
    context = plan.context
    weights = sum(
        FLOAT_BYTES * context.card_of(model).parameters
        for model, digest in plan.digests.items()
        if digest is None
    )
    missing = sum(not context.storage.iris(key).is_dir() for key in iri_keys(plan.pending))
    count = context.sweep.stitch_images or context.facts.train
    iris = missing * count * (prod(context.facts.shape) + IMAGE_BYTES)
    return weights + iris + len(plan.pending) * ROW_BYTES


def _drawn(workshop: Workshop, split: Split) -> NDArray[np.int64]:
    """Labels of the images that stitches are trained or tested on, which are not decoded."""
    context = workshop.context
    sweep, found = context.sweep, workshop.source(context.images.of_sweep)
    places = sources.chosen(sweep.data, split, found)
    labels, index = found.labels[split][places], found.index[split][places]
    count = sweep.stitch_images if split == "train" else sweep.test_images
    return labels[sources.draw_places(labels, index, count)]


def _encoded(context: Context) -> dict[str, Images]:
    """All images in use that are decoded into shards, by their place in the file."""
    entries = dict.fromkeys(context.sweep.models()[model].entry for model in context.networks)
    own = {f"zoo.{name}.data": context.images.own.get(name) for name in entries}
    used = {"data": context.images.of_sweep, **own}
    return {place: one for place, one in used.items() if one is not None and one.stored}


def _decoded(workshop: Workshop, images: Images) -> str:
    """Decode images of each split, spread evenly, unless all lie decoded in the storage."""
    from raystitch.run.attacked import evenly

    if not missing_images(images.splits(), workshop.context.storage):
        return "decoded already"
    found = workshop.source(images)
    looked_at = count = 0
    for split in SPLITS:
        places = sources.chosen(images.data, split, found)
        some = places[evenly(len(places), MOST_DECODED)]
        sources.read(found, split, some)
        looked_at, count = looked_at + len(some), count + len(places)
    if looked_at == count:
        return f"all {count} can be decoded"
    return f"{looked_at} of {count}, spread evenly, can be decoded; the others were not looked at"


def _labels(labels: NDArray[np.int64], context: Context) -> str:
    classes = context.facts.classes
    outside = [int(label) for label in labels if not 0 <= label < classes]
    if outside:
        raise RaystitchError(
            f"{len(outside)} labels are outside 0 to {classes - 1}, as {outside[0]}."
        )
    absent = sorted(set(range(classes)) - set(labels.tolist()))
    if absent:
        raise RaystitchError(
            f"there is no image of {len(absent)} of {classes} classes "
            f"({', '.join(map(str, absent[:8]))}): take at least {classes} images."
        )
    return f"{len(labels)} images of all {classes} classes"


def _memory(plan: Plan, workshop: Workshop) -> str:
    """The largest unit's activations, as far as they are kept, against the memory there is."""
    wanted = cost(plan).activation_bytes
    limit = plan.context.sweep.execution.activation_bytes
    kept, available = min(wanted, limit), _available_bytes(workshop)
    found = f"{in_bytes(kept)} of activations in the largest unit"
    if wanted > limit:
        found += f" (of {in_bytes(wanted)}; the rest is computed again)"
    if available is None:
        return f"{found}; how much there is, this system does not say"
    if kept > available:
        raise RaystitchError(
            f"{found}, but {in_bytes(available)} are available: lower "
            "`execution.activation_bytes` in the sweep file; what is not kept is computed again."
        )
    return f"{found}, {in_bytes(available)} available"


def _available_bytes(workshop: Workshop) -> int | None:
    """Memory that can still be taken on the device, the container's limit included."""
    if workshop.device.type == "cuda":
        import torch

        return torch.cuda.mem_get_info(workshop.device)[0]
    found = [_machine_bytes(), _container_bytes()]
    return min((count for count in found if count is not None), default=None)


def _machine_bytes() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    kibibytes = [int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")]
    return 1024 * kibibytes[0] if kibibytes else None


def _container_bytes() -> int | None:
    folder = Path("/sys/fs/cgroup")
    try:
        limit = (folder / "memory.max").read_text(encoding="ascii").strip()
        used = int((folder / "memory.current").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
    return max(int(limit) - used, 0) if limit.isdigit() else None


def _cuts_in_use(plan: Plan) -> dict[str, list[str]]:
    """Every cut at which each network is stitched or compared, pending or not."""
    cuts: dict[str, dict[str, None]] = {model: {} for model in plan.context.networks}
    for cell in plan.cells:
        cuts[cell.front_model][cell.front_cut] = None
        cuts[cell.end_model].update(dict.fromkeys((cell.end_cut, *cell.fula_cuts)))
    return {model: list(names) for model, names in cuts.items()}


def _network(workshop: Workshop, model: str, cuts: list[str]) -> str:
    """Build a network, load what weights there are, and hold each cut against the whole."""
    from raystitch.zoo.cuts import CutNetwork
    from raystitch.zoo.models import freeze, load_weights
    from raystitch.zoo.pixels import to_unit

    context = workshop.context
    entry = context.sweep.zoo[context.sweep.models()[model].entry]
    if context.storage.model_card(context.model_key(model)).is_file():
        network, weights = workshop.network(model), "its stored weights"
    else:
        network, weights = workshop.blank(model), "initial weights"
        if entry.weights is not None:
            load_weights(network, Path(entry.weights))
            weights = f"the weights of {entry.weights}"
        elif entry.pretrained:
            weights = "the published weights"
        network = freeze(network.to(workshop.device))
    halves = CutNetwork(network)
    images = to_unit(workshop.two_images(), workshop.device)
    for cut in cuts:
        halves.check(cut, images)
    return f"{entry.arch} with {weights}; {len(cuts)} cuts give its own logits, bit for bit"
