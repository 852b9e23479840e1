"""What a data set holds, found before any image is decoded, and how its images are read then."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from raystitch import settings
from raystitch.errors import RaystitchError, choices

Split = Literal["train", "test"]
SPLITS: tuple[Split, ...] = ("train", "test")

Read = Callable[[Split, NDArray[np.int64]], NDArray[np.uint8]]
"""(split, positions) to the images there: uint8 (n, channels, height, width)."""


@dataclass(frozen=True)
class Catalogue:
    """A data set, its images still to be read.

    shape: (channels, height, width) of every image as read; names: of the classes, by label.
    labels: of each split, int64 (n,); index: each image's position in the split of the whole
    source. content: digest of what the images come from, where they were put counts for nothing;
    None for a data set that is part of this package. notes: what a user should know of it.
    """

    shape: tuple[int, int, int]
    names: tuple[str, ...]
    labels: Mapping[str, NDArray[np.int64]]
    index: Mapping[str, NDArray[np.int64]]
    content: str | None
    read: Read
    notes: tuple[str, ...] = ()


def whole(
    shape: tuple[int, int, int],
    names: Sequence[str],
    labels: Mapping[str, NDArray[np.int64]],
    content: str | None,
    read: Read,
    notes: Iterable[str] = (),
) -> Catalogue:
    """A catalogue of all images of a source."""
    index = {split: np.arange(len(of)) for split, of in labels.items()}
    return Catalogue(shape, tuple(names), labels, index, content, read, tuple(notes))


def only_classes(found: Catalogue, wanted: Sequence[str] | None) -> Catalogue:
    """The images of some classes, labelled by the places of their names in ``wanted``.

    Raises `RaystitchError` for a class that is not there.
    """
    if wanted is None:
        return found
    for name in wanted:
        if name not in found.names:
            raise RaystitchError(
                f"data.classes: {_short(name, found.names)}. Name classes that are there."
            )
    places = [found.names.index(name) for name in wanted]
    relabelled = np.full(len(found.names), -1)
    relabelled[places] = np.arange(len(places))
    labels: dict[str, NDArray[np.int64]] = {}
    index: dict[str, NDArray[np.int64]] = {}
    for split in SPLITS:
        new = relabelled[found.labels[split]]
        labels[split], index[split] = new[new >= 0], found.index[split][new >= 0]
    content = None if found.content is None else digest([found.content, *wanted])
    return replace(found, names=tuple(wanted), labels=labels, index=index, content=content)


def _short(name: str, names: Sequence[str]) -> str:
    if len(names) <= 20:
        return choices(name, names)
    return f"{name!r} is not one of its {len(names)} classes, as {', '.join(names[:3])}"


def check(found: Catalogue, where: str) -> Catalogue:
    """The catalogue itself. Raises `RaystitchError` where a class or a split has no image."""
    if len(found.names) < 2:
        raise RaystitchError(
            f"data: {where} has {len(found.names)} class; networks need two classes or more."
        )
    for split in SPLITS:
        counts = np.bincount(found.labels[split], minlength=len(found.names))
        absent = [found.names[label] for label in np.flatnonzero(counts == 0)]
        if absent:
            rest = f" and {len(absent) - 3} more" if len(absent) > 3 else ""
            raise RaystitchError(
                f"data: the {split} images of {where} have none of the class "
                f"{', '.join(absent[:3])}{rest}; every class needs an image in both splits: add "
                "some, or name the classes to use in `data.classes`."
            )
    return found


def check_labels(labels: NDArray[Any], classes: int, where: str) -> NDArray[np.int64]:
    """Labels as int64 (n,). Raises `RaystitchError` for any outside 0 to ``classes`` - 1."""
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise RaystitchError(
            f"data: the labels in {where} are {labels.dtype} of shape {labels.shape}; they should "
            "be one whole number per image."
        )
    outside = labels[(labels < 0) | (labels >= classes)]
    if len(outside):
        raise RaystitchError(
            f"data: {len(outside)} labels in {where} are outside 0 to {classes - 1}, as "
            f"{outside[0]}; every label is the number of one of the {classes} classes."
        )
    return labels.astype(np.int64)


def need_folder(data: settings.Data) -> Path:
    """The source's folder. Raises `RaystitchError` where there is none."""
    assert data.path is not None
    path = Path(data.path)
    if not path.is_dir():
        what = "is a file" if path.exists() else "does not exist"
        raise RaystitchError(
            f"data.path: {path} {what}; `{data.source}` takes the folder of its files. A relative "
            "path counts from the sweep file's folder."
        )
    return path


def read_classes(data: settings.Data) -> tuple[str, ...] | None:
    """The classes to use: as listed, or the first word of each line of a file.

    Raises `RaystitchError` where the file cannot be read or names a class twice.
    """
    if not isinstance(data.classes, str):
        return data.classes
    path = Path(data.classes)
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise RaystitchError(
            f"data.classes: the file {path} cannot be read ({error}); give a list of classes, or a "
            "file with one in each line, counted from the sweep file's folder."
        ) from error
    words = [line.split()[0] for line in lines if line.strip() and not line.startswith("#")]
    twice = next((word for word in words if words.count(word) > 1), None)
    if twice is not None or not words:
        what = f"{twice} stands in it twice" if words else "it names no class"
        raise RaystitchError(f"data.classes: {path}: {what}; name each class once, one a line.")
    return tuple(words)


def digest(parts: Iterable[object]) -> str:
    """A digest of plain values, each told apart from the next."""
    made = hashlib.sha256()
    for part in parts:
        made.update(repr(part).encode() + b"\n")
    return made.hexdigest()[:40]
