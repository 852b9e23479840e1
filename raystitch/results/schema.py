"""The one declared schema of a row: a cell that was run, with its identity and its figures.

`COLUMNS` is the single source: the Arrow schema is made from it and used at write and at read, and
a reference of the columns can be printed from it. A later release may only add columns.
"""

from __future__ import annotations

from typing import NamedTuple

import pyarrow as pa


class Column(NamedTuple):
    """Type and meaning of one column."""

    type: pa.DataType
    description: str


_TEXT, _REAL, _INT, _LONG = pa.string(), pa.float64(), pa.int32(), pa.int64()


def _typed(kind: pa.DataType, texts: dict[str, str]) -> dict[str, Column]:
    return {name: Column(kind, text) for name, text in texts.items()}


_IDENTITY = {
    "key": Column(_TEXT, "Content key of the cell: SHA-256 of `settings`."),
    "sweep": Column(_TEXT, "Name of the sweep that ran it."),
    "unit": Column(_TEXT, "The unit of work that ran it: cells sharing front, cut, inputs, seed."),
    "front_model": Column(_TEXT, "Model that gives the early half, as `clean-0`."),
    "front_cut": Column(_TEXT, "Name of the front's cut."),
    "front_cut_index": Column(_INT, "Its place among the front's cuts, from 1 in data order."),
    "end_model": Column(_TEXT, "Model that gives the late half."),
    "end_cut": Column(_TEXT, "Name of the end's cut."),
    "end_cut_index": Column(_INT, "Its place among the end's cuts, from 1 in data order."),
    "objective": Column(_TEXT, "What the stitch is trained for: `hlm`, `slm`, `dm`, `fula`."),
    "protocol": Column(
        _TEXT, "Which inputs it is trained on: `standard`, `invariance`, `noise`, `foreign`."
    ),
    "seed": Column(_LONG, "Seed of the stitch, its batches and its IRIs."),
    "settings": Column(_TEXT, "All that defines the cell, as canonical JSON."),
    "data": Column(_TEXT, "Source of the images, as `digits`."),
    "stitch_marker": Column(_TEXT, "Marker (or its model) in the stitch's images; null: none."),
    "test_marker": Column(_TEXT, "Marker (or its model) in the test images; null: none."),
    "control": Column(_TEXT, "What stands in for the front's activation; null: nothing."),
    "variant": Column(_TEXT, "Variant of the sweep's settings; null: as they are."),
    "preset": Column(_TEXT, "Preset the training settings start from."),
    "budget": Column(_INT, "Multiple of the epochs allowed; more than 1 is a control."),
    "front_digest": Column(_TEXT, "SHA-256 of the front's parameters and buffers."),
    "end_digest": Column(_TEXT, "SHA-256 of the end's parameters and buffers."),
}

# On ordinary test images unless said otherwise; h is the stitched network, g the end, f the front.
_FIGURES = _typed(
    _REAL,
    {
        "agreement": "Agreement probability of h and g, in percent: the headline similarity.",
        "agreement_sem": "Its standard error over the test images, in points.",
        "agreement_low": "Lower end of its 95 % bootstrap interval over test images, in percent.",
        "agreement_high": "Upper end of that interval, in percent.",
        "agreement_init": "Agreement before any training step, in percent.",
        "accuracy": "Top-1 accuracy of h, in percent.",
        "accuracy_end": "Top-1 accuracy of g, in percent.",
        "accuracy_front": "Top-1 accuracy of f, in percent.",
        "accuracy_top5": "Top-5 accuracy of h, in percent.",
        "agreement_front": "Agreement of f, whole and without a stitch, with g, in percent.",
        "relative_accuracy": "accuracy / accuracy_end, in percent; null where g is never right.",
        "stitching_penalty": "accuracy_end - accuracy, in points.",
        "prediction_agreement": "Share of images with the same predicted class, in percent.",
        "hard_agreement": "Share where both are right or both are wrong, in percent.",
        "soft_accuracy": "Mean probability h gives to the label, in percent.",
        "soft_accuracy_end": "Mean probability g gives to the label, in percent.",
        "error_consistency": "Cohen's kappa of right and wrong answers, -1 to 1.",
        "soft_error_consistency": "The same on probabilities: agreement beyond chance, -1 to 1.",
        "entropy": "Mean entropy of h's answers, in nats: two uniform answers agree at 100 %.",
        "entropy_end": "Mean entropy of g's answers, in nats.",
        "agreement_matched": "Agreement on test images whose marker fits the label, in percent.",
        "agreement_rolled": "Agreement on test images with the next class's marker, in percent.",
        "excessive_agreement": "agreement_matched - agreement_rolled, in points.",
        "agreement_test_iris": "Agreement of h and g on IRIs of the test images, in percent.",
        "test_iri_residual": "Mean relative distance at the cut of these IRIs and their images.",
        "robust_agreement": "Agreement of h and g on images attacked against h, in percent.",
        "robust_accuracy": "Top-1 accuracy of h on these images, in percent.",
        "robust_accuracy_end": "Top-1 accuracy of g on these images, in percent.",
        "cka": "Linear CKA, biased, of f and g at the two cuts, 0 to 1.",
        "cka_unbiased": "Linear CKA from the unbiased HSIC of f and g at the two cuts, up to 1.",
        "stir": "Linear CKA, biased, of g at its cut on images and on their IRIs, 0 to 1.",
        "stir_unbiased": "The same from the unbiased HSIC, up to 1.",
        "effective_rank": "Effective rank of T's weight: directions it uses, 1 to its full rank.",
        "condition_number": "Largest over smallest singular value of T's weight.",
        "iri_residual": "Mean relative distance at the cut of IRI and image, after rounding.",
        "iri_null_residual": "Mean relative distance to the nearest other image of the class.",
        "iri_failed_share": "Share of IRIs not closer than that neighbour, in percent.",
        "iri_fidelity": "Agreement of f on IRIs with f on their images (no stitch), in percent.",
        "backward": "Agreement of g on IRIs with g on their images (no stitch), in percent.",
        "keep_error": "Largest relative error of activations kept in less than float32.",
        "loss_init": "The objective on held-out inputs of the cell before any step.",
        "loss": "The objective on held-out inputs of the cell at the end.",
    },
)

_COURSE = {
    "epochs": Column(_INT, "Epochs trained."),
    "steps": Column(_INT, "Optimiser steps taken."),
    "stop_reason": Column(_TEXT, "Why training stopped, as `plateau` or `epochs`."),
    "curve": Column(pa.list_(_REAL), "The objective on held-out inputs, one value per epoch."),
    "stitch_images": Column(_INT, "Images the stitch was trained on, held-out ones included."),
    "test_images": Column(_INT, "Images the figures were taken on."),
    "seconds": Column(_REAL, "Seconds spent on this cell, its share of shared work included."),
}

_RECORD = {
    "status": Column(_TEXT, "`ok`, or `failed` with the reason in `error`."),
    "error": Column(_TEXT, "Why the cell failed; null where it did not."),
    "raystitch_version": Column(_TEXT, "Version of raystitch that ran the cell."),
    "torch_version": Column(_TEXT, "Version of torch."),
    "ray_version": Column(_TEXT, "Version of Ray; null where it ran without Ray."),
    "device": Column(_TEXT, "Device it ran on, as `cpu`."),
    "finished_at": Column(pa.timestamp("us", tz="UTC"), "When it finished, in UTC."),
}

COLUMNS: dict[str, Column] = {**_IDENTITY, **_FIGURES, **_COURSE, **_RECORD}
"""Column name -> (Arrow type, description), in stored order."""

CELL_SCHEMA = pa.schema([pa.field(name, column.type) for name, column in COLUMNS.items()])

METRICS: tuple[str, ...] = (*_FIGURES, "epochs", "steps", "seconds")
"""Columns that are a cell's outcome as a number: the metric axis of a tensor."""

PLACE: tuple[str, ...] = (
    *("front_model", "end_model", "front_cut", "end_cut"),
    *("stitch_marker", "test_marker", "control", "variant", "data", "preset", "budget"),
    *("objective", "protocol", "seed"),
)
"""Columns that say where a cell stands among the others of its sweep: the axes of a tensor."""

OUTCOME: tuple[str, ...] = (
    *("key", *PLACE, "front_cut_index", "end_cut_index"),
    *("status", "error", *METRICS),
)
"""Columns that tensors and the summary are made of."""
