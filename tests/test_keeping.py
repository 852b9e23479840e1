"""What a plan says will be kept is what a run keeps; settings of computing and their keys."""

from pathlib import Path

import pytest

import planning
import sweeping
from raystitch.compute import Compute
from raystitch.results.store import Storage
from raystitch.run.planning import load_sweep, make_plan
from raystitch.sweep.card_faults import card_faults
from raystitch.sweep.cells import units
from raystitch.sweep.keeping import keeping, worth_keeping
from raystitch.sweep.keys import content_key, iri_identity
from raystitch.sweep.memory import BASE_BYTES, worker_bytes
from raystitch.sweep.plan import expand

LEAN = {"layout": "channels_last", "fold_bn": True}


def cells(**changes):
    return expand(planning.sweep(**changes), planning.cards(), planning.IMAGES)


def test_the_counts_of_what_is_kept_are_those_by_hand() -> None:
    changes = {
        "cuts": ["blocks.2"],
        "objectives": ["fula"],
        "protocols": ["standard", "invariance"],
        "execution": {"flops_per_byte": 0},
    }
    sweep = planning.sweep(**changes)
    found = keeping(units(cells(**changes)), sweep, planning.cards(), 1437, 360)
    at = {2: 32 * 8 * 8 * 4, 3: 64 * 4 * 4 * 4, 4: 64 * 4 * 4 * 4}
    logits = 4 * 10
    front_test = 360 * (at[2] + logits)
    end_test = 360 * logits
    end_own = sum(at.values()) + logits
    assert found.shared_bytes == front_test + end_test + 512 * (at[2] + end_own)
    assert found.own_bytes == 512 * (at[2] + end_own)
    assert found.again == ()


def test_what_is_sooner_computed_is_named_and_not_counted() -> None:
    changes = {"cuts": ["blocks.0"], "execution": {"flops_per_byte": 1}}
    found = keeping(units(cells(**changes)), planning.sweep(**changes), planning.cards(), 1437, 360)
    # The hand-made card has so few operations that all is sooner computed but the logits alone.
    assert found.again[0] == "clean-1 at blocks.0 (0 FLOP a byte)"
    assert found.shared_bytes == 360 * 4 * 10
    assert worth_keeping(10, 101, 10)
    assert not worth_keeping(10, 100, 10)


def test_the_memory_of_a_worker_is_that_counted_by_hand() -> None:
    changes = {"cuts": ["blocks.2"], "objectives": ["dm"], "protocols": ["standard"]}
    sweep, found = planning.sweep(**changes), units(cells(**changes))
    shape = (3, 16, 16)
    counted = worker_bytes(found, sweep, planning.cards(), shape, 1437, 360)
    at = {0: 16 * 16 * 16 * 4, 2: 32 * 8 * 8 * 4, 3: 64 * 4 * 4 * 4, 4: 64 * 4 * 4 * 4}
    weights, pixels = 4 * 2 * 100_000, 2 * (1437 + 360) * 3 * 16 * 16
    kept = 512 * 2 * at[2] + 360 * at[2]
    step = 2 * 128 * (at[2] + at[3] + at[4] + 4 * 64)
    forward = 3 * 128 * at[0]
    assert counted == BASE_BYTES + weights + pixels + kept + max(step, forward)


def test_a_run_keeps_what_its_plan_counted(tmp_path) -> None:
    changes = {
        "protocols": ["standard"],
        "execution": {
            **sweeping.SMALL["execution"],
            "cache_folder": str(tmp_path / "cache"),
            "flops_per_byte": 0,
        },
    }
    path = sweeping.write(tmp_path, **changes)
    context = load_sweep(path, Storage(tmp_path / "runs"))
    plan = make_plan(context)
    facts = context.facts
    wanted = keeping(plan.units, context.sweep, context.cards, facts.train, facts.test)
    outcome = sweeping.run(path, tmp_path / "runs")
    assert outcome.exit_code == 0
    sizes = [file.stat().st_size for file in Path(tmp_path / "cache").glob("*.bin")]
    # Each file ends in a description of at most some hundred bytes.
    assert wanted.shared_bytes < sum(sizes) < wanted.shared_bytes + 200 * len(sizes)


def test_settings_of_computing_enter_a_key_once_they_are_used() -> None:
    plain, given, lean = (
        {cell.key for cell in cells(**more)}
        for more in ({}, {"compute": {"layout": "contiguous"}}, {"compute": LEAN})
    )
    assert plain == given
    assert plain.isdisjoint(lean)


def test_iris_do_not_depend_on_what_is_kept_of_activations() -> None:
    def keys(**compute):
        found = (iri_identity(cell.settings) for cell in cells(compute=compute))
        return {content_key(identity) for identity in found if identity is not None}

    assert keys() == keys(keep="bfloat16")
    assert keys().isdisjoint(keys(**LEAN))
    assert keys(**LEAN) == keys(**LEAN, keep="float16")


@pytest.mark.parametrize("training", [{"bn": "batch"}, {"dropout": True}])
def test_compiled_halves_that_would_change_their_mode_are_refused(training) -> None:
    compiled = {"compute": {"compile": True}}
    (fault,) = card_faults(planning.sweep(training=training, **compiled), planning.cards())
    assert fault.place == "compute.compile"
    assert card_faults(planning.sweep(**compiled), planning.cards()) == ()


@pytest.mark.parametrize(
    ("compute", "points"),
    [(LEAN, 0.05), ({"keep": "bfloat16"}, 1.0), ({"precision": "bfloat16"}, 3.0)],
)
def test_lean_networks_give_nearly_the_same_figures(compute, points, tmp_path) -> None:
    changes = {"protocols": ["standard", "noise"], "cuts": ["blocks.2"]}
    found = {}
    for name, more in (("plain", {}), ("lean", {"compute": compute})):
        path = sweeping.write(tmp_path, name=name, **changes, **more)
        outcome = sweeping.run(path, tmp_path / "runs")
        assert outcome.exit_code == 0
        found[name] = outcome.plan.rows.sort("protocol", "objective")
    gaps = (found["plain"]["agreement"] - found["lean"]["agreement"]).abs()
    assert 0 < gaps.max() < points
    kept = found["lean"]["keep_error"]
    assert found["plain"]["keep_error"].is_null().all()
    if "keep" in compute:
        assert kept.is_between(1e-4, 2**-8).all()
    else:
        assert kept.is_null().all()
    assert found["lean"]["settings"].str.contains('"compute"').all()


def test_every_field_of_computing_is_later_so_that_plain_keys_stay() -> None:
    assert Compute.later == set(Compute.model_fields)
