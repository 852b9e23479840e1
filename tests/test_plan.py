"""Planning: which cells a sweep has, which are left, why, and what they cost."""

from __future__ import annotations

import gc
import hashlib
import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import planning
from raystitch.errors import RaystitchError
from raystitch.sweep.cells import Cell, Unit, counts, units
from raystitch.sweep.estimate import Cost, estimate, total
from raystitch.sweep.keys import canonical, content_key, iri_identity, iri_keys
from raystitch.sweep.pairing import fula_cuts, pair_cuts
from raystitch.sweep.plan import expand, identities
from raystitch.sweep.resume import pending, subtract, why
from raystitch.sweep.spec import Sweep

DIGESTS = {"clean-0": "d0", "clean-1": "d1", "shortcut-2": "d2"}


def plan(**changes: Any) -> list[Cell]:
    return expand(planning.sweep(**changes), planning.cards(), planning.IMAGES)


def rows(cells: list[Cell], status: str = "ok", **columns: Any) -> pl.DataFrame:
    """Stored rows of cells, as the results' store gives them."""
    names = ("key", "front_model", "front_cut", "end_model", "end_cut", "objective", "protocol")
    made = [
        {
            **{name: getattr(cell, name) for name in (*names, "seed")},
            "settings": canonical(cell.settings),
            "status": status,
            "error": None if status == "ok" else "diverged",
            "front_digest": DIGESTS[cell.front_model],
            "end_digest": DIGESTS[cell.end_model],
            **columns,
        }
        for cell in cells
    ]
    return pl.DataFrame(made)


def test_a_sweep_has_its_cells_and_no_hlm_on_noise():
    cells = plan(seeds=[0, 1])
    per_protocol = {"standard": 4, "invariance": 4, "noise": 3}
    assert Counter(c.protocol for c in cells) == {
        name: 3 * 2 * objectives for name, objectives in per_protocol.items()
    }
    assert not [c for c in cells if c.protocol == "noise" and c.objective == "hlm"]
    assert {(c.front_cut, c.end_cut) for c in cells} == {
        (name, name) for name in ("blocks.0", "blocks.2", "blocks.4")
    }
    assert {c.front_cut_index for c in cells} == {1, 3, 5}


def test_keys_are_those_of_the_whole_settings_and_differ():
    cells = plan(pairs="all", budget=2, protocols=["standard", "invariance", "noise", "foreign"])
    assert [content_key(c.settings) for c in cells] == [c.key for c in cells]
    assert len({c.key for c in cells}) == len(cells) == 9 * 3 * 15


def test_settings_hold_what_defines_a_cell():
    pair = {"front": "shortcut-2", "end": "clean-0", "stitch_marker": "shortcut-2"}
    (cell,) = plan(pairs=[pair], cuts="blocks.2", objectives=["fula"], protocols=["invariance"])
    settings = cell.settings
    assert set(settings) == {
        *("version", "data", "stitch", "test", "front", "front_cut", "end", "end_cut"),
        *("objective", "fula_cuts", "protocol", "seed", "training", "iris"),
    }
    assert settings["stitch"] == {
        "images": 512,
        "marker": {"kind": "pixel", "size": 4, "place": "random", "seed": 2},
    }
    assert settings["test"] == {"images": None, "marker": None}
    assert settings["fula_cuts"] == ["blocks.2", "blocks.3", "blocks.4"]
    assert settings["front"]["seed"] == 2
    (plain,) = plan(pairs=[pair], cuts="blocks.2", objectives=["dm"], protocols=["standard"])
    assert not {"iris", "fula_cuts", "budget"} & set(plain.settings)
    assert plan(budget=4)[0].settings["budget"] == 4


@pytest.mark.parametrize(
    ("changes", "moves"),
    [
        ({"execution": {"threads": 1, "device": "cpu", "activation_bytes": 1}}, False),
        ({"name": "another"}, False),
        ({"training": {"lr": 0.02}}, True),
        ({"training": {"lr": 0.01}}, False),
        ({"stitch_images": 511}, True),
        ({"test_images": 10}, True),
        ({"budget": 2}, True),
        ({"iris": {"steps": 3}}, False),
    ],
)
def test_only_what_can_change_a_number_changes_a_key(changes: dict[str, Any], moves: bool):
    protocols = ["standard", "noise"]
    before = {c.key for c in plan(protocols=protocols)}
    after = {c.key for c in plan(protocols=protocols, **changes)}
    assert (before.isdisjoint(after), before == after) == (moves, not moves)


def test_iri_settings_change_only_cells_that_train_on_iris():
    before = {c.key: c.protocol for c in plan()}
    after = {c.key for c in plan(iris={"steps": 3})}
    assert {protocol for key, protocol in before.items() if key not in after} == {"invariance"}


def test_fula_cuts_change_only_fula_cells():
    before = {c.key: c.objective for c in plan()}
    after = {c.key for c in plan(fula_cuts="paper")}
    assert {objective for key, objective in before.items() if key not in after} == {"fula"}


def test_each_measure_is_in_the_keys_of_the_cells_it_applies_to_alone():
    pairs = [
        {"front": "clean-1", "end": "clean-0"},
        {"front": "clean-1", "end": "clean-0", "test_marker": "shortcut-2"},
        {"front": "clean-1", "end": "clean-0", "control": "class_noise"},
    ]

    def measured(**evaluation: Any) -> set[tuple[bool, bool, str]]:
        given = {"pairs": pairs, "protocols": ["standard", "invariance", "noise"]}
        plain = {cell.key for cell in plan(**given)}
        return {
            (cell.test_marker is not None, cell.control is not None, cell.protocol)
            for cell in plan(**given, evaluation=evaluation)
            if cell.key not in plain
        }

    free = {(False, False, name) for name in ("standard", "invariance", "noise")}
    marked = {(True, False, name) for name in ("standard", "invariance", "noise")}
    assert measured() == measured(robust=False, representation=None) == set()
    assert measured(excessive=True) == marked
    assert measured(robust=True) == measured(representation=True) == free | marked
    assert measured(test_iris=True) == {
        (False, False, "invariance"),
        (True, False, "invariance"),
    }


def test_a_measure_written_out_at_its_defaults_is_the_same_as_true():
    written = {"robust": {"eps": "8/255", "steps": 20}, "representation": {"images": 1024}}
    switched = {"robust": True, "representation": True}
    assert [cell.key for cell in plan(evaluation=written)] == [
        cell.key for cell in plan(evaluation=switched)
    ]
    other = plan(evaluation={"robust": {"eps": "4/255"}})
    assert other[0].key != plan(evaluation={"robust": True})[0].key


def test_iris_of_test_images_have_a_key_of_their_own():
    iris = {"protocols": ["standard", "invariance"]}
    few = plan(**iris)
    more = plan(**iris, evaluation={"test_iris": True})
    fewer = plan(**iris, evaluation={"test_iris": True}, test_images=50)
    assert len(iri_keys(few)) == 3
    assert len(iri_keys(more)) == 6
    assert set(iri_keys(few)) < set(iri_keys(more))
    assert set(iri_keys(few)) == set(iri_keys(more)) & set(iri_keys(fewer))


def test_measures_move_no_unit_and_no_iris():
    for one, other in zip(plan(), plan(evaluation={"robust": True}), strict=True):
        assert one.unit == other.unit
        assert iri_identity(one.settings) == iri_identity(other.settings)


def test_an_alias_of_a_cut_is_the_same_cell():
    assert {c.key for c in plan(cuts=["blocks.2.2"])} == {c.key for c in plan(cuts=["blocks.2"])}


def test_cells_of_one_identity_are_one_cell():
    zoo = {
        "clean": {"arch": "raystitch/cnn5", "seeds": [0, 1]},
        "shortcut": {"arch": "raystitch/cnn5", "seeds": [1, 2]},
    }
    pairs = [{"front": "clean-1", "end": "clean-0"}, {"front": "shortcut-1", "end": "clean-0"}]
    assert [c.front_model for c in plan(zoo=zoo, pairs=pairs)] == ["clean-1"] * 33


def test_weights_are_identified_by_content_wherever_they_lie(tmp_path: Path):
    def keys_with(name: str, content: bytes) -> list[str]:
        (tmp_path / name).write_bytes(content)
        weights = {"arch": "raystitch/cnn5", "weights": str(tmp_path / name)}
        zoo = {"clean": {"arch": "raystitch/cnn5", "seeds": [0, 1]}, "shortcut": weights}
        pairs = [{"front": "shortcut-0", "end": "clean-0"}]
        return [c.key for c in plan(zoo=zoo, pairs=pairs)]

    first = keys_with("a.pth", b"one")
    assert first == keys_with("b.pth", b"one")
    assert set(first).isdisjoint(keys_with("b.pth", b"two"))
    made = planning.sweep(
        zoo={"own": {"arch": "raystitch/cnn5", "weights": str(tmp_path / "a.pth")}}, pairs="all"
    )
    found = identities(made, planning.IMAGES)["own-0"]["weights"]
    assert found == hashlib.sha256(b"one").hexdigest()
    (tmp_path / "a.pth").unlink()
    with pytest.raises(RaystitchError, match=r"zoo\.own\.weights"):
        identities(made, planning.IMAGES)


def names_of(front: int, end: int) -> list[tuple[str, str]]:
    def cuts(count: int) -> list[Any]:
        return list(planning.map_card(count).select("blocks"))

    return [(f.name[-1], e.name[-1]) for f, e in pair_cuts(cuts(front), cuts(end))]


def test_cuts_of_unlike_networks_are_paired_by_rounding():
    assert names_of(3, 3) == [("0", "0"), ("1", "1"), ("2", "2")]
    assert names_of(9, 3) == [("0", "0"), ("4", "1"), ("8", "2")]
    assert names_of(3, 5) == [("0", "0"), ("0", "1"), ("1", "2"), ("2", "3"), ("2", "4")]
    assert names_of(5, 1) == [("0", "0")]
    assert names_of(1, 3) == [("0", "0"), ("0", "1"), ("0", "2")]


def test_cross_layer_stitches_each_cut_to_each_and_keeps_the_keys_of_like_cuts():
    cells = plan(cross_layer=True)
    names = ("blocks.0", "blocks.2", "blocks.4")
    assert {(c.front_cut, c.end_cut) for c in cells} == {(f, e) for f in names for e in names}
    like = plan()
    assert len(cells) == 3 * len(like)
    assert {c.key for c in like} == {c.key for c in cells if c.front_cut == c.end_cut}
    # All ends' cuts of one front cut share its inputs: as many units as without.
    assert len(units(cells)) == len(units(like))


def test_fula_compares_the_cut_itself_and_the_chosen_later_ones():
    card = planning.map_card()

    def names(choice: str | list[str], cut: str) -> list[str]:
        return [c.name for c in fula_cuts(choice, card, card.cut(cut))]

    assert names("blocks", "blocks.2") == ["blocks.2", "blocks.3", "blocks.4"]
    assert names("paper", "blocks.1") == ["blocks.1", "blocks.2", "blocks.4"]
    assert names(["blocks.0", "pool"], "blocks.3") == ["blocks.3", "pool"]
    assert names("blocks", "pool") == ["pool"]


def test_what_is_stored_under_the_same_networks_is_done():
    cells = plan()
    statuses = subtract(cells, rows(cells[:5]), DIGESTS)
    assert statuses == ["done"] * 5 + ["pending"] * 28
    assert pending(cells, statuses) == cells[5:]
    assert counts(statuses) == {"done": 5, "failed": 0, "pending": 28}


def test_nothing_stored_is_all_pending():
    cells = plan()
    assert set(subtract(cells, rows(cells).clear(), DIGESTS)) == {"pending"}


@pytest.mark.parametrize("model", ["clean-0", "clean-1"])
def test_a_row_counts_only_for_the_networks_it_was_made_with(model: str):
    cells = plan()
    assert set(subtract(cells, rows(cells), DIGESTS | {model: "other"})) == {"pending"}
    assert set(subtract(cells, rows(cells), DIGESTS | {model: None})) == {"pending"}
    assert set(subtract(cells, rows(cells, end_digest=None), DIGESTS)) == {"pending"}


def test_a_failure_is_final_until_it_is_retried_and_a_good_row_mends_it():
    cells = plan()[:1]
    failed, good = rows(cells, "failed"), rows(cells)
    assert subtract(cells, failed, DIGESTS) == ["failed"]
    assert subtract(cells, failed, DIGESTS, retry_failed=True) == ["pending"]
    for both in (
        pl.concat([failed, good], how="vertical_relaxed"),
        pl.concat([good, failed], how="vertical_relaxed"),
    ):
        assert subtract(cells, both, DIGESTS) == ["done"]
        assert subtract(cells, both, DIGESTS, retry_failed=True) == ["done"]


@pytest.mark.parametrize("retry_failed", [True, False])
def test_subtraction_is_what_it_says_of_each_cell(retry_failed: bool) -> None:
    """Against its sentence, cell by cell: rows of other networks, several under one key, none."""
    draw = random.Random(0)
    cells = plan(pairs="all")
    digests = {"clean-0": "d0", "clean-1": "d1", "shortcut-2": None}
    stored = [
        (draw.choice(cells).key, *draw.choices(["d0", "d1", "gone", None], k=2), status)
        for status in draw.choices(["ok", "failed"], k=4000)
    ]
    names = ("key", "front_digest", "end_digest", "status")
    frame = pl.DataFrame(stored, schema=names, orient="row")
    wanted = []
    for cell in cells:
        own = digests[cell.front_model], digests[cell.end_model]
        found = {s for key, *of, s in stored if key == cell.key and tuple(of) == own}
        found = set() if None in own else found
        failed = "pending" if retry_failed else "failed"
        wanted.append("done" if "ok" in found else failed if found else "pending")
    assert len(set(wanted)) == 3 - retry_failed
    assert subtract(cells, frame, digests, retry_failed=retry_failed) == wanted


def test_cycles_are_sought_again_after_a_plan_and_after_one_that_fails() -> None:
    plan()
    assert gc.isenabled()
    with pytest.raises(RaystitchError):
        expand(planning.sweep(cuts="nowhere"), planning.cards(), planning.IMAGES)
    assert gc.isenabled()


def test_a_unit_is_all_pending_cells_of_one_front_cut_protocol_and_seed():
    pairs = {"fronts": ["clean-0", "clean-1"], "ends": ["clean-0", "shortcut-2"]}
    cells = plan(pairs=pairs, seeds=[0, 1])
    made = units(cells)
    assert len(made) == 2 * 3 * 3 * 2
    assert sorted(c.key for unit in made for c in unit.cells) == sorted(c.key for c in cells)
    for unit in made:
        assert {
            (c.front_model, c.front_cut, c.protocol, c.seed, c.stitch_marker) for c in unit.cells
        } == {(unit.front_model, unit.front_cut, unit.protocol, unit.seed, unit.stitch_marker)}
        assert {c.end_model for c in unit.cells} == {"clean-0", "shortcut-2"}


def test_a_unit_keeps_its_key_whichever_of_its_cells_are_pending():
    cells = plan()
    whole = {unit.key for unit in units(cells)}
    assert {unit.key for unit in units(cells[1::2])} == whole
    assert len(whole) == 9


def test_cells_on_marked_images_are_units_of_their_own():
    pairs = [
        {"front": "shortcut-2", "end": "clean-0"},
        {"front": "shortcut-2", "end": "clean-1", "test_marker": "shortcut-2"},
        {"front": "shortcut-2", "end": "clean-0", "stitch_marker": "shortcut-2"},
    ]
    cells = plan(pairs=pairs, cuts="blocks.0", protocols=["standard"])
    assert [(u.stitch_marker, len(u.cells)) for u in units(cells)] == [(None, 8), ("shortcut-2", 4)]


def test_why_a_cell_never_ran():
    assert set(why(plan(), rows(plan()).clear(), DIGESTS)) == {"never ran"}


def test_why_a_cell_failed():
    cells = plan()[:1]
    assert why(cells, rows(cells, "failed"), DIGESTS) == ["failed: diverged"]


def test_why_names_the_network_that_changed():
    cells = plan()[:1]
    (reason,) = why(cells, rows(cells), DIGESTS | {"clean-1": "e1"})
    assert reason == "the network clean-1 is not the one of then (d1 -> e1)"
    (reason,) = why(cells, rows(cells), DIGESTS | {"clean-0": None})
    assert reason == "the network clean-0 is not stored"


def test_why_names_the_settings_that_differ_from_the_nearest_cell():
    far = rows(plan(training={"lr": 0.5, "batch": 8, "epochs": 3, "patience": 9}))
    near = rows(plan(training={"lr": 0.01}, stitch_images=100))
    cells = plan(training={"lr": 0.02})
    (reason,) = set(why(cells, pl.concat([far, near]), DIGESTS))
    assert sorted(reason.split(", ")) == ["stitch.images: 100 -> 512", "training.lr: 0.01 -> 0.02"]
    (reason,) = set(why(cells, far, DIGESTS))
    assert reason.endswith("and 1 more")


def test_why_shows_a_whole_marker_as_one_difference():
    pair = {"front": "shortcut-2", "end": "clean-0"}
    plain = plan(pairs=[pair])[:1]
    marked = plan(pairs=[pair | {"test_marker": "shortcut-2"}])[:1]
    (reason,) = why(marked, rows(plain), DIGESTS)
    assert reason.startswith('test.marker: null -> {"kind": "pixel"')
    assert ", and" not in reason
    (reason,) = why(plan(budget=4)[:1], rows(plan()), DIGESTS)
    assert reason == "budget: absent -> 4"


def only_unit(**changes: Any) -> tuple[Unit, Sweep]:
    made = planning.sweep(**{"cuts": "blocks.2", "protocols": ["standard"], **changes})
    (unit,) = units(expand(made, planning.cards(), planning.IMAGES))
    return unit, made


def test_bytes_of_a_unit_are_its_activations_and_targets():
    one = 4 * 32 * 8 * 8  # bytes of an image at blocks.2

    def bytes_of(*objectives: str, **changes: Any) -> int:
        unit, made = only_unit(objectives=list(objectives), **changes)
        return estimate(unit, made, planning.cards(), 1437, 360).activation_bytes

    assert bytes_of("hlm") == 512 * one
    assert bytes_of("slm") == 512 * (one + 4 * 10)
    assert bytes_of("dm") == 512 * 2 * one
    assert bytes_of("dm", "fula") == 512 * (2 * one + 2 * 4 * 64 * 4 * 4)
    assert bytes_of("hlm", stitch_images=None) == 1437 * one
    pairs = {"fronts": ["clean-1"], "ends": ["clean-0", "shortcut-2"]}
    assert bytes_of("dm", pairs=pairs) == 512 * 3 * one


def test_flops_of_a_unit():
    mixing = 2 * 32 * 32 * 64
    front, end = 3000, 5704
    once = 512 * (front + end) + 360 * (front + mixing + end - 3000)
    training = {"epochs": 10}

    def flops(objective: str, **changes: Any) -> int:
        unit, made = only_unit(objectives=[objective], training=training, **changes)
        return estimate(unit, made, planning.cards(), 1437, 360).flops

    assert flops("dm") == once + 10 * 512 * 3 * mixing
    assert flops("hlm") == once + 10 * 512 * (3 * mixing + 2 * (end - 3000))
    assert flops("fula") == once + 10 * 512 * (3 * mixing + 2 * (5000 - 3000))
    assert flops("dm", budget=4) == once + 40 * 512 * 3 * mixing
    iris = flops("dm", protocols=["invariance"], iris={"steps": 100}) - flops("dm")
    assert iris == 512 * 100 * 2 * front
    attacks = flops("dm", evaluation={"robust": {"steps": 9, "images": 50}}) - flops("dm")
    assert attacks == 50 * 2 * 10 * 2 * (front + mixing + end - 3000)


def test_units_run_one_after_another():
    assert total([Cost(5, 10), Cost(7, 20)]) == Cost(7, 30)
    assert total([]) == Cost(0, 0)


def test_settings_are_json():
    cell = plan()[0]
    assert json.loads(canonical(cell.settings)) == cell.settings
