# pyright: basic
"""Makes and checks the networks of the zoo in parallel, with Ray Data; epochs are heard of."""

from __future__ import annotations

import queue
import threading
from collections.abc import Generator, Sequence

from raystitch.cards import ModelCard
from raystitch.errors import RaystitchError
from raystitch.run.cluster import Cluster
from raystitch.run.planning import Context
from raystitch.run.pool import Done, Lost, PoolWorker, Values, through_pool
from raystitch.run.work import Left, ModelTask, OnEpoch


class MakeModel(PoolWorker):
    """Makes and stores networks; tells of their epochs, answers with the card or the fault."""

    def work(self, one: ModelTask) -> Generator[Values, None, Values]:
        # Training calls back after each epoch; answers are asked for one by one.
        heard: queue.Queue[Values | ModelCard | BaseException] = queue.Queue()
        worker = threading.Thread(target=self._make, args=(one, heard))
        worker.start()
        while isinstance(last := heard.get(), dict):
            yield last
        worker.join()
        if isinstance(last, ModelCard):
            return {"card": last.to_json()}
        if isinstance(last, RaystitchError):
            return {"fault": str(last)}
        raise last

    def _make(
        self, task: ModelTask, heard: queue.Queue[Values | ModelCard | BaseException]
    ) -> None:
        from raystitch.run.zoo_stage import make_and_check

        def on_epoch(model: str, epoch: int, loss: float) -> None:
            heard.put({"epoch": epoch, "loss": loss})

        try:
            heard.put(make_and_check(self.workshop, task, on_epoch))
        except BaseException as error:
            heard.put(error)


def make_models(
    tasks: Sequence[ModelTask], context: Context, cluster: Cluster, on_epoch: OnEpoch
) -> Generator[ModelCard | Left]:
    """Each network's card, once it is stored and checked, or why it cannot be used."""
    for answer in through_pool("networks", tasks, MakeModel, context, cluster):
        model = tasks[answer.number].model
        match answer:
            case Lost():
                yield Left(model, answer.reason, answer.story)
            case Done() if "card" in answer.values:
                yield ModelCard.from_json(answer.values["card"])
            case Done():
                yield Left(model, answer.values["fault"])
            case _:
                on_epoch(model, answer.values["epoch"], answer.values["loss"])
