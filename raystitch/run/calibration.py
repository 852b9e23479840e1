"""How long a sweep takes at most on this machine: its FLOPs over a rate that is measured here."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from raystitch.run.cluster import slots_here
from raystitch.run.planning import Context, Plan
from raystitch.run.process import prepare
from raystitch.run.status import cost, in_flops
from raystitch.run.workshop import device_of
from raystitch.zoo.cuts import CutNetwork
from raystitch.zoo.models import build, freeze

SECONDS = 1.0
"""Time for which passes are measured."""


@dataclass(frozen=True)
class Calibration:
    """What this machine does: slots of ``rate`` FLOP/s each, as measured on a network, in words."""

    rate: float
    slots: int
    measured_on: str

    def hours(self, flops: float) -> float:
        """Hours for so many operations on all slots."""
        return flops / (self.rate * self.slots) / 3600


def calibrate(context: Context) -> Calibration:
    """Measure one slot on the sweep's largest network, for a second or so.

    Its frozen halves run as the sweep runs them, at the batch of its stitches: forward, and
    backward to the input alone. The weights are initial ones, so nothing is fetched.
    """
    sweep, execution = context.sweep, context.sweep.execution
    prepare(execution.threads)
    device = device_of(execution.device)
    entries = {sweep.models()[model].entry for model in context.networks}
    name = max(entries, key=lambda entry: context.cards[entry].flops)
    entry, facts, batch = sweep.zoo[name], context.images.of(name).facts, sweep.training.batch
    network = build(
        entry.arch, entry.kwargs, classes=facts.classes, input_shape=facts.shape, seed=0
    )
    whole = CutNetwork(freeze(network.to(device))).under(sweep.compute).observer(())
    images = torch.rand(batch, *facts.shape, device=device)
    seconds = _seconds_of_a_pass(whole, images)
    gpus = torch.cuda.device_count() if device.type == "cuda" else 0
    return Calibration(
        2 * context.cards[name].flops * batch / seconds,
        slots_here(execution, device.type, gpus),
        f"{entry.arch} in batches of {batch}, {execution.threads} threads, on {device}",
    )


def _seconds_of_a_pass(network: torch.nn.Module, images: torch.Tensor) -> float:
    """Of one batch forward and backward; the first, which sets things up, does not count."""
    images.requires_grad_()

    def run() -> None:
        logits = network(images)
        (gradient,) = torch.autograd.grad(logits.sum(), images)
        gradient[0].norm().item()  # where work is queued, this waits for it

    run()
    passes, began = 0, time.perf_counter()
    while not passes or time.perf_counter() - began < SECONDS:
        run()
        passes += 1
    return (time.perf_counter() - began) / passes


def hour_lines(
    plan: Plan, found: Calibration, slots: int | None, price: float | None
) -> Iterator[str]:
    """Hours that the pending cells take at most, and what they cost.

    slots: in place of those of this machine; price: of an hour of all of them together.
    """
    if slots is not None:
        found = Calibration(found.rate, slots, found.measured_on)
    hours = found.hours(cost(plan).flops)
    yield f"one slot, measured: {in_flops(found.rate)}/s ({found.measured_on})"
    yield (
        f"hours at most, on {found.slots} slots: {hours:.2g} (stitches and IRIs, every epoch; "
        "the plateau schedule ends cells earlier; the training of networks is not counted)"
    )
    if price is not None:
        yield f"cost at most: {hours * price:.2g} at {price:g} an hour"
