# pyright: basic
"""Rows of work through a pool of Ray Data actors: their answers as they come, in any order.

There is no read and no write task: an actor stores what it makes and answers with small rows, so
the pool may take every CPU of the cluster (beside such tasks it would wait for ever).
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import ray
from ray.data import ActorPoolStrategy, DataContext
from ray.data.exceptions import ExecutionTimeoutError
from ray.exceptions import RayError

from raystitch.errors import EngineError
from raystitch.run.cluster import Cluster
from raystitch.run.watch import silent
from raystitch.sweep.spec import Execution

Row = dict[str, Any]


def through_pool(
    stage: str,
    rows: Sequence[Row],
    actor: type,
    arguments: tuple[Any, ...],
    cluster: Cluster,
    execution: Execution,
) -> Iterator[Row]:
    """The answers to each row, as they are given.

    rows: each with its ``number``, which its answers repeat; actor: called with a table of one row,
    yields tables, the last of them with ``done``. Rows whose worker was lost are tried again,
    ``execution.retries`` times; a row that was lost every time has no such last answer. Raises
    `EngineError` when nothing is heard for ``execution.progress_seconds``.
    """
    waiting = {row["number"]: row for row in rows}
    for left in reversed(range(execution.retries + 1)):
        try:
            rest = list(waiting.values())
            for answer in _once(stage, rest, actor, arguments, cluster, execution):
                if answer["done"]:
                    del waiting[answer["number"]]
                yield answer
        except RayError as error:  # a worker that died before it took its first row
            if not left:
                raise EngineError(f"Ray Data gave up the {stage}: {error}") from error
        if not waiting:
            return


def _once(
    stage: str,
    rows: Sequence[Row],
    actor: type,
    arguments: tuple[Any, ...],
    cluster: Cluster,
    execution: Execution,
) -> Iterator[Row]:
    """The answers of the workers that are not lost."""
    _settings(execution)
    size = min(cluster.slots, len(rows))
    # Ray would try for ever. Another limit can only be given as Ray 2.64 will no longer have it.
    warnings.filterwarnings("ignore", "`ray_remote_args` is deprecated")
    dataset = ray.data.from_items(list(rows), override_num_blocks=len(rows)).map_batches(
        actor,
        batch_size=1,
        batch_format="pyarrow",
        compute=ActorPoolStrategy(
            min_size=1, max_size=size, initial_size=size, max_tasks_in_flight_per_actor=1
        ),
        fn_constructor_args=arguments,
        num_cpus=cluster.cpus,
        num_gpus=cluster.gpus or None,
        max_restarts=0,
        max_task_retries=0,
    )
    try:
        # Without prefetching, which holds an answer back until the next one is there.
        tables: Any = dataset.iter_batches(
            batch_size=None, batch_format="pyarrow", prefetch_batches=0
        )
        for table in tables:
            yield from table.to_pylist()
    except ExecutionTimeoutError as error:
        raise silent(stage, execution.progress_seconds) from error


def _settings(execution: Execution) -> None:
    context = DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    context.execution_no_progress_timeout_s = execution.progress_seconds
    context.target_max_block_size = 1  # every answer is sent as soon as it is given
    context.max_errored_blocks = -1  # the others go on; what has no answer is told by its absence
