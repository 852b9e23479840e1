# pyright: basic
"""Makes and checks the networks of the zoo in parallel, with Ray Data; epochs are heard of."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from raystitch.cards import ModelCard
from raystitch.run.cluster import Cluster
from raystitch.run.planning import Context
from raystitch.run.pool import through_pool
from raystitch.run.work import Left, ModelTask, OnEpoch, reason_of

ANSWER = pa.schema(
    [
        ("number", pa.int64()),
        ("done", pa.bool_()),
        ("epoch", pa.int64()),
        ("loss", pa.float64()),
        ("fault", pa.string()),
    ]
)


class MakeModel:
    """One worker. Stores the network itself; answers with its epochs, then with its faults."""

    def __init__(self, context: Context, tasks: Sequence[ModelTask]) -> None:
        from raystitch.run.workshop import Workshop

        self.workshop, self.tasks = Workshop(context), tasks

    def __call__(self, table: pa.Table) -> Iterator[pa.Table]:
        number: int = table.to_pylist()[0]["number"]
        # Training calls back after each epoch; answers are asked for one by one.
        answers: queue.Queue[dict[str, Any]] = queue.Queue()
        worker = threading.Thread(target=self._make, args=(self.tasks[number], answers))
        worker.start()
        done = False
        while not done:
            answer = {"number": number, **answers.get()}
            done = answer["done"]
            yield pa.Table.from_pylist([answer], ANSWER)
        worker.join()

    def _make(self, task: ModelTask, answers: queue.Queue[dict[str, Any]]) -> None:
        from raystitch.run.zoo_stage import make_and_check

        def on_epoch(model: str, epoch: int, loss: float) -> None:
            answers.put({"done": False, "epoch": epoch, "loss": loss})

        last: dict[str, Any] = {"done": True}
        try:
            make_and_check(self.workshop, task, on_epoch)
        except BaseException as error:
            last["fault"] = reason_of(error)
        answers.put(last)


def make_models(
    tasks: Sequence[ModelTask], context: Context, cluster: Cluster, on_epoch: OnEpoch
) -> Iterator[ModelCard | Left]:
    """Each network's card, once it is stored and checked, or why it cannot be used."""
    execution = context.sweep.execution
    rows = [{"number": number, "model": task.model} for number, task in enumerate(tasks)]
    waiting = {task.model for task in tasks}
    arguments = (context, tuple(tasks))
    for answer in through_pool("networks", rows, MakeModel, arguments, cluster, execution):
        model = tasks[answer["number"]].model
        if not answer["done"]:
            on_epoch(model, answer["epoch"], answer["loss"])
            continue
        waiting.remove(model)
        if answer["fault"] is not None:
            yield Left(model, answer["fault"])
        else:
            yield ModelCard.read(context.storage.model_card(context.model_key(model)))
    lost = f"its worker was lost {execution.retries + 1} times"
    yield from (Left(model, lost) for model in sorted(waiting))
