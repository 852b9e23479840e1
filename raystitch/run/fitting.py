"""A sweep held against its images: what is not there, what does not fit, what a trial run takes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from raystitch.data.markers import plant, sized
from raystitch.data.sources import SourceFacts
from raystitch.errors import Fault, RaystitchError
from raystitch.run.image_sets import Images, look_at
from raystitch.settings import Data, Marker, Training
from raystitch.sweep.limits import fewer_images
from raystitch.sweep.spec import Sweep

LEAST_ROWS = 4
"""Images that unbiased CKA needs."""


@dataclass(frozen=True)
class AllImages:
    """The images of a sweep, and of the entries of its zoo that have their own."""

    of_sweep: Images
    own: Mapping[str, Images]

    def notes(self) -> list[str]:
        """What a user should know of them, each once."""
        every = (self.of_sweep, *self.own.values())
        return list(dict.fromkeys(note for images in every for note in images.notes))

    def of(self, entry: str) -> Images:
        """The images that networks of an entry are trained on."""
        return self.own.get(entry, self.of_sweep)


def fit(sweep: Sweep, limit_images: int | None) -> tuple[Sweep, AllImages | None, list[Fault]]:
    """The sweep with all that follows from its images filled in, these images, and all faults.

    None in place of the images where some cannot be had. In a trial run, of ``limit_images``, it
    asks for fewer.
    """
    faults: list[Fault] = []
    of_sweep = _looked_at("data", sweep.data, faults)
    own = {
        name: _looked_at(f"zoo.{name}.data", entry.data, faults)
        for name, entry in sweep.zoo.items()
        if entry.data is not None
    }
    known = {name: images for name, images in own.items() if images is not None}
    if of_sweep is None or len(known) < len(own):
        return sweep, None, faults
    images = AllImages(of_sweep, known)
    faults += [*_shape_faults(images), *_end_faults(sweep, images)]
    sweep = _with_sizes(sweep, images, faults)
    sweep = _counted(sweep, of_sweep.facts, limit_images, faults)
    if limit_images is not None:
        fewer = {name: found.fewer(limit_images) for name, found in known.items()}
        images = AllImages(of_sweep.fewer(limit_images), fewer)
        zoo = {
            name: entry.model_copy(update={"data": fewer[name].data} if name in fewer else {})
            for name, entry in sweep.zoo.items()
        }
        sweep = sweep.model_copy(update={"data": images.of_sweep.data, "zoo": zoo})
    faults += dict.fromkeys(_batch_faults(sweep, images.of_sweep.facts.train))
    return sweep, images, faults


def _looked_at(place: str, data: Data, faults: list[Fault]) -> Images | None:
    try:
        return look_at(data)
    except RaystitchError as error:
        # The sentence begins with the field of `data` that it is about.
        field, _, rest = str(error).partition(": ")
        inner = field.removeprefix("data")
        known = field.startswith("data") and inner.lstrip(".") in ("", *Data.model_fields)
        faults.append(Fault(f"{place}{inner}", rest) if known else Fault(place, str(error)))
        return None


def _shape_faults(images: AllImages) -> Iterator[Fault]:
    shape = images.of_sweep.facts.shape
    for name, own in images.own.items():
        if own.facts.shape != shape:
            yield Fault(
                f"zoo.{name}.data",
                f"its images are {own.facts.shape} and those of the sweep {shape} (channels, "
                "height, width); they must match: use `resize` and `crop`",
            )


def _end_faults(sweep: Sweep, images: AllImages) -> Iterator[Fault]:
    models, classes = sweep.models(), images.of_sweep.facts.classes
    for place, pair in sweep.pair_list():
        own = images.of(models[pair.end].entry).facts.classes
        if own != classes:
            yield Fault(
                place,
                f"the end {pair.end} knows {own} classes, and the sweep's images have {classes}; "
                "an end answers in the classes of `data`: only a front may have others",
            )


def _with_sizes(sweep: Sweep, images: AllImages, faults: list[Fault]) -> Sweep:
    """Every marker's size filled in, and a fault for each that cannot be planted."""

    def known(place: str, marker: Marker, facts: SourceFacts) -> Marker:
        found = sized(marker, facts.shape)
        try:
            plant(found, facts.classes, facts.shape, seed=0)
        except RaystitchError as error:
            faults.append(Fault(place, str(error)))
        return found

    zoo = dict(sweep.zoo)
    for name, entry in zoo.items():
        if entry.marker is not None:
            marker = known(f"zoo.{name}.marker", entry.marker, images.of(name).facts)
            zoo[name] = entry.model_copy(update={"marker": marker})
    changes: dict[str, object] = {"zoo": zoo}
    if sweep.markers:
        facts = images.of_sweep.facts
        named = {n: known(f"markers.{n}", one, facts) for n, one in sweep.markers.items()}
        changes["markers"] = named
    return sweep.model_copy(update=changes)


def _counted(
    sweep: Sweep, facts: SourceFacts, limit_images: int | None, faults: list[Fault]
) -> Sweep:
    """Its numbers of stitch and test images, none where all there are are taken."""
    if limit_images is not None:
        sweep = fewer_images(sweep, facts.train, facts.test, limit_images)
    changes: dict[str, int | None] = {}
    for field, wanted, there in (
        ("stitch_images", sweep.stitch_images, facts.train),
        ("test_images", sweep.test_images, facts.test),
    ):
        if wanted is not None and wanted > there:
            faults.append(Fault(field, f"{wanted} are asked for, but {there} are there"))
            continue
        taken = min(wanted or there, limit_images or there)
        # All of them is the same images as not asking: one key.
        changes[field] = taken if taken < min(there, limit_images or there) else None
        if sweep.evaluation.representation is not None and taken < LEAST_ROWS:
            message = f"unbiased CKA needs at least {LEAST_ROWS} images, and these are {taken}"
            faults.append(Fault(field, f"{message}; take more, or no `representation`"))
    return sweep.model_copy(update=changes)


def attack_faults(sweep: Sweep, test: int) -> Iterator[Fault]:
    """A fault where more images are to be attacked than stitches are tested on."""
    robust, there = sweep.evaluation.robust, min(sweep.test_images or test, test)
    if robust is not None and robust.images is not None and robust.images > there:
        yield Fault(
            "evaluation.robust.images",
            f"{robust.images} are asked for, but stitches are tested on {there} images; ask for at "
            "most that, or leave it out to attack all",
        )


def _batch_faults(sweep: Sweep, train: int) -> Iterator[Fault]:
    """A fault for each training of which an epoch would have no batch, or one too small."""
    for training in sweep.trainings():
        yield from _batch_fault(training, sweep.stitch_images or train)


def _batch_fault(training: Training, images: int) -> Iterator[Fault]:
    """A fault where an epoch over so many stitch images would have no batch."""
    held = training.held_out_of(images)
    least, last = training.batch if training.drop_last else 1, (images - held) % training.batch
    if images - held < least:
        kept = f" with {held} of them held out" if held else ""
        whole = f"a whole batch of {least} (`training.drop_last`)" if least > 1 else "a batch"
        yield Fault(
            "stitch_images",
            f"{images} images{kept} do not fill {whole}, so no stitch would be trained; take at "
            f"least {least + held} images" + (" or a smaller `training.batch`" * (least > 1)),
        )
    elif training.bn == "batch" and 1 in (training.batch, 0 if training.drop_last else last):
        yield Fault(
            "stitch_images",
            f"{images - held} images in batches of {training.batch} give a batch of one image, and "
            "`bn: batch` needs two for its statistics; use `drop_last: true`, or another number "
            "of images or `training.batch`",
        )
