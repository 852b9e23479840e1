# pyright: basic
"""Rows of work through a pool of Ray Data actors: their answers as they come, in any order.

There is no read and no write task: an actor stores what it makes and answers with small rows, so
the pool may take every CPU of the cluster (beside such tasks it would wait for ever).
"""

from __future__ import annotations

import json
import traceback
import warnings
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa
import ray
from ray.data import ActorPoolStrategy, DataContext
from ray.data.exceptions import ExecutionTimeoutError
from ray.exceptions import RayError

from raystitch.errors import EngineError
from raystitch.run.cluster import Cluster, last_line
from raystitch.run.place import Place, here, log_tail
from raystitch.run.planning import Context
from raystitch.run.watch import silent
from raystitch.run.work import reason_of
from raystitch.sweep.execution import Execution

Values = dict[str, Any]
"""What a worker says, in JSON's types."""

MESSAGE = pa.schema([("number", pa.int64()), ("kind", pa.string()), ("values", pa.string())])


class PoolWorker:
    """One actor. It keeps its workshop from row to row, and stores what it makes by itself."""

    def __init__(self, context: Context, work: Sequence[Any]) -> None:
        from raystitch.run.workshop import Workshop

        self.workshop, self.all = Workshop(context), work

    def work(self, one: Any) -> Generator[Values, None, Values]:
        """Do one piece of work: yields what is worth telling on the way, returns how it came out.

        What it raises counts as a failure around the work, which is then tried again.
        """
        raise NotImplementedError

    def __call__(self, table: pa.Table) -> Iterator[pa.Table]:
        number: int = table.column("number")[0].as_py()
        yield _message(number, "began", asdict(here()))
        try:
            values = yield from self._told(number)
        except Exception as error:
            broken = {"reason": reason_of(error), "story": traceback.format_exc()}
            yield _message(number, "broke", broken)
        else:
            yield _message(number, "done", values)

    def _told(self, number: int) -> Generator[pa.Table, None, Values]:
        work = self.work(self.all[number])
        while True:
            try:
                values = next(work)
            except StopIteration as end:
                return end.value
            yield _message(number, "told", values)


def _message(number: int, kind: str, values: Values) -> pa.Table:
    row = {"number": number, "kind": kind, "values": json.dumps(values)}
    return pa.Table.from_pylist([row], MESSAGE)


@dataclass(frozen=True)
class Told:
    """What a worker says of one piece of work on its way."""

    number: int
    values: Values


@dataclass(frozen=True)
class Done:
    """How one piece of work came out."""

    number: int
    values: Values


@dataclass(frozen=True)
class Lost:
    """A piece of work that failed each time it was tried, by something around it.

    reason: in one line, with the place; story: the traceback, or the end of the worker's log.
    """

    number: int
    reason: str
    story: str


def through_pool(
    stage: str,
    work: Sequence[Any],
    worker: type[PoolWorker],
    context: Context,
    cluster: Cluster,
) -> Generator[Told | Done | Lost]:
    """What the workers say of each piece of work, by its number, as they say it.

    Work that failed by something around it is tried again ``execution.retries`` times. Raises
    `EngineError` when nothing is heard for ``execution.progress_seconds``, every time.
    """
    retries = context.sweep.execution.retries
    numbers, losses = list(range(len(work))), dict[int, Lost]()
    places: dict[int, Place] = {}
    for left in reversed(range(retries + 1)):
        losses = {number: Lost(number, "its worker never began", "") for number in numbers}
        places.clear()
        try:
            for number, kind, values in _once(numbers, work, worker, context, cluster):
                if kind == "began":
                    places[number] = Place(**{**values, "logs": tuple(values["logs"])})
                    losses[number] = Lost(number, f"its worker was lost on {places[number]}", "")
                elif kind == "broke":
                    reason = f"{values['reason']} (on {places.pop(number)})"
                    losses[number] = Lost(number, reason, values["story"])
                elif kind == "done":
                    del losses[number], places[number]
                    yield Done(number, values)
                else:
                    yield Told(number, values)
        except ExecutionTimeoutError as error:
            if not left:
                raise silent(stage, context.sweep.execution.progress_seconds) from error
        except RayError as error:  # workers that died as they started, one after the other
            if not left:
                raise EngineError(f"Ray Data gave up the {stage}: {last_line(error)}") from error
        if not losses:
            return
        numbers = list(losses)
    yield from (_with_log(loss, places.get(number)) for number, loss in losses.items())


def _with_log(loss: Lost, place: Place | None) -> Lost:
    """A loss with the end of the log of the worker that was lost."""
    return loss if place is None else Lost(loss.number, loss.reason, log_tail(place))


def _once(
    numbers: Sequence[int],
    work: Sequence[Any],
    worker: type[PoolWorker],
    context: Context,
    cluster: Cluster,
) -> Generator[tuple[int, str, Values]]:
    """The messages of workers, each row given to one of them once."""
    size = min(cluster.slots, len(numbers))
    with _settings(context.sweep.execution):
        dataset = ray.data.from_items(
            [{"number": number} for number in numbers], override_num_blocks=len(numbers)
        ).map_batches(
            worker,
            batch_size=1,
            batch_format="pyarrow",
            # As many at every time: Ray replaces no actor that it has scaled down.
            compute=ActorPoolStrategy(
                min_size=size, max_size=size, initial_size=size, max_tasks_in_flight_per_actor=1
            ),
            fn_constructor_args=(context, work),
            num_cpus=cluster.cpus,
            num_gpus=cluster.gpus or None,
            # A worker that dies is started again; its row is not, it is told by its absence.
            max_task_retries=0,
        )
    # Without prefetching, which holds a message back until the next one is there.
    tables: Iterable[Any] = dataset.iter_batches(
        batch_size=None, batch_format="pyarrow", prefetch_batches=0
    )
    for table in tables:
        for row in table.to_pylist():
            yield row["number"], row["kind"], json.loads(row["values"])


@contextmanager
def _settings(execution: Execution) -> Generator[None]:
    """Ray Data's settings for the datasets that are made inside."""
    context = DataContext.get_current().copy()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    context.execution_no_progress_timeout_s = execution.progress_seconds
    context.target_max_block_size = 1  # every message is sent as soon as it is given
    context.max_errored_blocks = -1  # the others go on
    context.max_consecutive_actor_init_deaths = execution.retries
    with DataContext.current(context), warnings.catch_warnings():
        # Ray would try a row for ever; the other limit can only be given in this way so far.
        warnings.filterwarnings("ignore", "`ray_remote_args` is deprecated")
        yield
