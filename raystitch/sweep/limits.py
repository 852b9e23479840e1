"""A trial run: a sweep with fewer epochs, as another sweep with keys of its own."""

from __future__ import annotations

from collections.abc import Iterable

from raystitch.settings import Training
from raystitch.sweep.spec import Sweep
from raystitch.sweep.variants import TrainingOf


def limited(sweep: Sweep, max_epochs: int | None) -> Sweep:
    """The sweep with at most so many epochs of a stitch's training; as it is for None."""
    if max_epochs is None:
        return sweep
    most = max_epochs

    def fewer(training: Training, fields: Iterable[str]) -> Training:
        changes = {name: min(getattr(training, name), most) for name in fields}
        return training.model_copy(update=changes)

    def written(training: Training) -> Training:
        return fewer(training, training.model_fields_set & {"epochs", "min_epochs"})

    def each(trainings: TrainingOf) -> TrainingOf:
        return {protocol: written(training) for protocol, training in trainings.items()}

    variants = {
        name: variant.model_copy(
            update={
                "training": written(variant.training),
                "training_of": each(variant.training_of),
            }
        )
        for name, variant in sweep.variants.items()
    }
    changes = {
        "training": fewer(sweep.training, ("epochs", "min_epochs")),
        "training_of": each(sweep.training_of),
        "variants": variants,
    }
    return sweep.model_copy(update=changes)
