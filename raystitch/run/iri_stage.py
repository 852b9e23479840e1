# pyright: basic
"""Builds shards of IRIs with Ray Data: rows are shard specs, each actor keeps its last networks."""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from raystitch.errors import CellError
from raystitch.run.cluster import Cluster
from raystitch.run.iri_specs import IriShardSpec
from raystitch.run.planning import Context
from raystitch.run.pool import through_pool
from raystitch.run.work import BuiltShard

LOST = "the worker was lost, again and again"

MANIFEST = pa.schema(
    [
        ("number", pa.int64()),
        ("done", pa.bool_()),
        ("residual", pa.float64()),
        ("failure", pa.string()),
        ("incident", pa.string()),
    ]
)


class BuildShard:
    """One worker. Stores the shard itself and answers with how it came out."""

    def __init__(self, context: Context, specs: Sequence[IriShardSpec]) -> None:
        from raystitch.run.workshop import Workshop

        self.workshop, self.specs = Workshop(context), specs

    def __call__(self, table: pa.Table) -> Iterator[pa.Table]:
        from raystitch.run.iri_sets import build_shard

        number: int = table.to_pylist()[0]["number"]
        row: dict[str, Any] = {"number": number, "done": True}
        try:
            row["residual"] = build_shard(self.specs[number], self.workshop)
        except CellError as error:
            row["failure"] = str(error)
        except Exception:
            row["incident"] = traceback.format_exc()
        yield pa.Table.from_pylist([row], MANIFEST)


def build_shards(
    specs: Sequence[IriShardSpec], context: Context, cluster: Cluster
) -> Iterator[BuiltShard]:
    """Each shard, once it is stored; the shards of lost workers at the end."""
    # Neighbours share a front, so that an actor finds it among those it keeps.
    ordered = sorted(specs, key=lambda spec: (spec.iri_set.front_model, spec.iri_set.cut))
    rows = [
        {
            "number": number,
            "iri_set": spec.iri_set.key,
            "part": spec.part,
            "front_model": spec.iri_set.front_model,
            "cut": spec.iri_set.cut,
        }
        for number, spec in enumerate(ordered)
    ]
    waiting = set(range(len(ordered)))
    arguments = (context, ordered)
    for row in through_pool("IRIs", rows, BuildShard, arguments, cluster, context.sweep.execution):
        waiting.remove(row["number"])
        spec = ordered[row["number"]]
        yield BuiltShard(spec, row["residual"], row["failure"], row["incident"])
    yield from (BuiltShard(ordered[number], incident=LOST) for number in sorted(waiting))
