"""Reading a sweep file: all faults at once, each with its place, and nothing but the faults."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest

import planning
from raystitch.cards import NetworkCard
from raystitch.errors import Fault, RaystitchError, SweepFileError
from raystitch.sweep.read import card_faults, parse_sweep, read_sweep, require

QUICKSTART = Path(__file__).parents[1] / "sweeps" / "quickstart.yaml"

GOOD = """
name: small
data: digits
zoo:
  clean: {arch: raystitch/cnn5, seeds: [0, 1]}
  shortcut: {arch: raystitch/cnn5, seeds: [2], marker: {size: 4}}
pairs:
  - {front: clean-0, end: clean-1}
  - {front: shortcut-2, end: clean-0, stitch_marker: shortcut-2, test_marker: shortcut-2}
"""

FIVE_FAULTS = """
name: five
data: digits
zoo:
  clean: {arch: raystitch/cnn5, seeds: [0, 1], epochs: -5}
  tokens: {arch: timm/vit_tiny_patch16_224}
pairs:
  - {front: clean-0, end: clean-1}
  - {front: cleen-0, end: clean-1}
  - {front: clean-0, end: tokens-0}
objectives: [hlm, fulla]
colour: red
"""


def faults_of(text: str, folder: Path | None = None) -> dict[str, str]:
    _, faults = parse_sweep(text, folder)
    assert len({fault.place for fault in faults}) == len(faults), faults
    return {fault.place: fault.message for fault in faults}


def changed(old: str, new: str) -> dict[str, str]:
    assert old in GOOD
    return faults_of(GOOD.replace(old, new))


def test_a_good_file_has_no_fault():
    sweep, faults = parse_sweep(GOOD)
    assert faults == ()
    assert list(sweep.models()) == ["clean-0", "clean-1", "shortcut-2"]


def test_the_quickstart_has_no_fault():
    sweep, faults = read_sweep(QUICKSTART)
    found = {name: planning.map_card() for name in sweep.zoo}
    assert (*faults, *card_faults(sweep, found)) == ()
    assert [p.front for _, p in sweep.pair_list()] == [
        "clean-0",
        "clean-1",
        "shortcut-2",
        "robust-3",
    ]
    assert sweep.stitch_images == 512


def test_five_faults_are_found_at_once_each_at_its_place():
    sweep, faults = parse_sweep(FIVE_FAULTS)
    known: dict[str, NetworkCard] = {
        "clean": planning.map_card(3),
        "tokens": planning.token_card(18),
    }
    found = {f.place: f.message for f in (*faults, *card_faults(sweep, known))}
    assert set(found) == {
        "zoo.clean.epochs",
        "pairs[1].front",
        "pairs[2]",
        "objectives[1]",
        "colour",
    }
    assert "at least 1" in found["zoo.clean.epochs"]
    assert "did you mean 'clean-0'" in found["pairs[1].front"]
    assert "18 tokens are no square grid" in found["pairs[2]"]
    assert "did you mean 'fula'" in found["objectives[1]"]
    assert "there is no such field" in found["colour"]


def test_faults_are_found_without_torch(tmp_path: Path):
    path = tmp_path / "five.yaml"
    path.write_text(FIVE_FAULTS)
    code = (
        "import sys; from pathlib import Path; from raystitch.sweep.read import read_sweep\n"
        "print(len(read_sweep(Path(sys.argv[1]))[1]), 'torch' in sys.modules, 'ray' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["4", "False", "False"]


def test_all_faults_are_one_error(tmp_path: Path):
    path = tmp_path / "five.yaml"
    path.write_text(FIVE_FAULTS)
    with pytest.raises(SweepFileError, match=r"five\.yaml has 4 faults") as caught:
        require(path, *read_sweep(path))
    assert caught.value.exit_code == 2
    with pytest.raises(RaystitchError, match="cannot be read"):
        read_sweep(tmp_path / "absent.yaml")


@pytest.mark.parametrize(
    ("old", "new", "place", "says"),
    [
        ("name: small", "name: a/b", "name", "letters, digits"),
        ("name: small", "name: ..", "name", "letters, digits"),
        ("name: small\n", "", "name", "is missing"),
        ("data: digits", "data: digts", "data", "did you mean 'digits'"),
        ("data: digits", "data: {source: digits, train: 0}", "data.train", "at least 1"),
        ("seeds: [0, 1]", "seeds: [0, 0, 1]", "zoo.clean.seeds", "0 is given twice"),
        ("seeds: [0, 1]", "seeds: []", "zoo.clean.seeds", "is empty"),
        ("seeds: [0, 1]", "seeds: 0", "zoo.clean.seeds", "a list"),
        ("name: small", "name: small\ntraining:", "training", "is given; it should be a mapping"),
        ("seeds: [0, 1]", "seeds: [0, 1], lr: fast", "zoo.clean.lr", "should be a number"),
        ("seeds: [0, 1]", "seeds: [0, 1], epochs: 1.5", "zoo.clean.epochs", "a whole number"),
        ("seeds: [0, 1]", "seeds: [0, 1], epochs: true", "zoo.clean.epochs", "whole number"),
        (
            "seeds: [0, 1]",
            "seeds: [0, 1], eps: 0.1",
            "zoo.clean.eps",
            "no use in `recipe: standard`",
        ),
        ("seeds: [0, 1]", "seeds: [0, 1], recipe: robst, eps: 0.1", "zoo.clean.recipe", "robust"),
        ("seeds: [0, 1]", "seeds: [0, 1], mean: [0.5]", "zoo.clean.mean", "needs `std`"),
        (
            "seeds: [0, 1]",
            "seeds: [0, 1], mean: [0.5], std: [1, 1]",
            "zoo.clean.std",
            "2 channels",
        ),
        (
            "seeds: [0, 1]",
            "seeds: [0, 1], mean: [124, 0.5, 0.4], std: [1, 1, 1]",
            "zoo.clean.mean",
            "124 is not in [0, 1], as pixels are",
        ),
        ("seeds: [0, 1]", "seeds: [0], pretrained: true", "zoo.clean.pretrained", "publishes"),
        ("arch: raystitch/cnn5, seeds: [0, 1]", "arch: cnn5, seeds: [0, 1]", "zoo.clean.arch", "L"),
        (
            "arch: raystitch/cnn5, seeds: [0, 1]",
            "arch: torchvison/vgg, seeds: [0, 1]",
            "zoo.clean.arch",
            "did you mean 'torchvision'",
        ),
        ("arch: raystitch/cnn5, seeds: [0, 1]", "seeds: [0, 1]", "zoo.clean.arch", "is missing"),
        ("{size: 4}", "{size: 0}", "zoo.shortcut.marker.size", "at least 1"),
        ("{size: 4}", "{kind: noise, place: per_class}", "zoo.shortcut.marker.place", "`random`"),
        ("name: small", "name: small\nmarkers: {p: {size: 0}}", "markers.p.size", "at least 1"),
        ("name: small", "name: small\nmarkers: {p: {kin: noise}}", "markers.p.kin", "'kind'"),
        ("name: small", "name: small\nmarkers: {clean-0: {}}", "markers.clean-0", "another name"),
        ("{size: 4}", "{sise: 4}", "zoo.shortcut.marker.sise", "did you mean 'size'"),
        ("{front: clean-0, end: clean-1}", "{front: clean-0}", "pairs[0].end", "is missing"),
        (
            "{front: clean-0, end: clean-1}",
            "{frnt: clean-0, end: clean-1}",
            "pairs[0].frnt",
            "did you mean 'front'",
        ),
        (
            "{front: clean-0, end: clean-1}",
            "{front: clean, end: clean-1}",
            "pairs[0].front",
            "clean-0, clean-1",
        ),
        (
            "end: clean-1}",
            "end: clean-1, stitch_marker: clean-1}",
            "pairs[0].stitch_marker",
            "networks with one: shortcut-2",
        ),
        ("end: clean-1}", "end: clean-1, test_marker: z}", "pairs[0].test_marker", "no such"),
        ("end: clean-1}", "end: clean-1}\n  - {front: clean-0, end: clean-1}", "pairs[1]", "again"),
        ("name: small", "name: small\ncuts: {clean: blocks}", "cuts", "for shortcut"),
        (
            "name: small",
            "name: small\ncuts: {clean: all, shortcut: all, a: all}",
            "cuts.a",
            "no such entry",
        ),
        ("name: small", "name: small\ncuts: 3", "cuts", "should be"),
        ("name: small", "name: small\nprotocols: [standrd]", "protocols[0]", "'standard'"),
        ("name: small", "name: small\nobjectives: [dm, dm]", "objectives", "given twice"),
        (
            "name: small",
            "name: small\nobjectives: [hlm]\nprotocols: [noise]",
            "objectives",
            "no cell",
        ),
        ("name: small", "name: small\nseeds: [0, 0]", "seeds", "given twice"),
        ("name: small", "name: small\nseeds: [-1]", "seeds[0]", "at least 0"),
        ("name: small", "name: small\npreset: publishd", "preset", "did you mean 'published'"),
        ("name: small", "name: small\ntraining: {lr: 0}", "training.lr", "more than 0"),
        ("name: small", "name: small\ntraining: {bn: train}", "training.bn", "batch"),
        (
            "name: small",
            "name: small\ntraining_of: {standrd: {lr: 1}}",
            "training_of.standrd",
            "'standard'",
        ),
        (
            "name: small",
            "name: small\ntraining_of: {noise: {lr: 0}}",
            "training_of.noise.lr",
            "more than 0",
        ),
        (
            "name: small",
            "name: small\nvariants: {long: {budgt: 4}}",
            "variants.long.budgt",
            "did you mean 'budget'",
        ),
        (
            "name: small",
            "name: small\ntraining: {attack_share: 0.5}",
            "training",
            "attack_share needs labels, and noise has none",
        ),
        ("name: small", "name: small\niris: 3", "iris", "a mapping"),
        ("name: small", "name: small\niris: {rul: adam}", "iris.rul", "did you mean 'rule'"),
        ("name: small", "name: small\nfula_cuts: all", "fula_cuts", "not one of blocks, paper"),
        ("name: small", "name: small\nexecution: {device: tpu}", "execution.device", "cuda"),
        ("name: small", "name: small\nbudget: 0", "budget", "at least 1"),
        ("name: small", "name: small\nname: again", "line 3", "given twice (first in line 2)"),
    ],
)
def test_one_mistake_is_one_fault(old: str, new: str, place: str, says: str):
    found = changed(old, new)
    assert list(found) == [place]
    assert says in found[place]


def test_weights_and_recipes_exclude_each_other(tmp_path: Path):
    (tmp_path / "w.pth").touch()
    text = GOOD + "cuts: {clean: all, shortcut: all, own: all}\n"
    entry = "own: {arch: timm/x, weights: w.pth, %s}\n"

    def found(fields: str) -> set[str]:
        return set(faults_of(text.replace("pairs:", f"  {entry % fields}pairs:"), tmp_path))

    assert found("seeds: [5]") == set()
    assert found("seeds: [5], lr: 0.1, recipe: standard, marker: {}, pretrained: true") == {
        "zoo.own.lr",
        "zoo.own.recipe",
        "zoo.own.marker",
        "zoo.own.pretrained",
    }
    assert found("seeds: [5, 6]") == {"zoo.own.seeds"}
    entry = "own: {arch: timm/x, weights: %s}\n"
    assert found("absent.pth") == {"zoo.own.weights"}
    assert found("w.txt") == {"zoo.own.weights"}


def test_weights_are_looked_for_beside_the_file(tmp_path: Path):
    (tmp_path / "w.pth").touch()
    path = tmp_path / "sweep.yaml"
    path.write_text(GOOD.replace("pairs:", "  own: {arch: timm/x, weights: w.pth}\npairs:"))
    sweep, faults = read_sweep(path)
    assert faults == ()
    assert sweep.zoo["own"].weights == str(tmp_path / "w.pth")


def test_what_refers_to_a_faulty_entry_is_no_fault_of_its_own():
    assert list(changed("seeds: [2], marker", "seed: [2], marker")) == ["zoo.shortcut.seed"]
    assert list(changed("marker: {size: 4}", "markr: {size: 4}")) == ["zoo.shortcut.markr"]
    assert list(changed("  clean: {arch: raystitch/cnn5, seeds", "  clean: {seeds")) == [
        "zoo.clean.arch"
    ]


def test_a_misspelt_section_is_one_fault_and_the_rest_is_read():
    found = changed("zoo:", "zo:")
    assert list(found) == ["zo"]
    assert "did you mean 'zoo'" in found["zo"]


def test_places_stay_those_of_the_file_when_earlier_items_are_faulty():
    text = FIVE_FAULTS.replace("- {front: clean-0, end: clean-1}\n", "- {front: 3, end: clean-1}\n")
    sweep, faults = parse_sweep(text)
    assert {"pairs[0].front", "pairs[1].front"} <= {fault.place for fault in faults}
    assert [place for place, _ in sweep.pair_list()] == ["pairs[2]"]


def test_an_aliased_list_is_cut_in_one_place_only():
    text = GOOD + "objectives: &names [dm, slm]\nprotocols: *names\n"
    assert set(faults_of(text)) == {"protocols[0]", "protocols[1]"}


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("name: [", "line 1"),
        ("a: b\n c: d", "line 2"),
        ("a: !!python/object/apply:os.getcwd []", "line 1"),
        ("", "file"),
        ("- name", "file"),
        ("a: &x [*x]", "file"),
        ("name: \0", "file"),
    ],
)
def test_what_is_no_sweep_file_at_all_is_one_fault(text: str, place: str):
    sweep, faults = parse_sweep(text)
    assert sweep is None
    assert [fault.place for fault in faults] == [place]


def test_numbers_may_be_fractions_and_exponents():
    sweep, faults = parse_sweep(
        GOOD.replace("seeds: [0, 1]", "seeds: [0, 1], recipe: robust, eps: 8/255, lr: 1e-2")
    )
    assert faults == ()
    assert sweep.zoo["clean"].eps == 8 / 255
    assert sweep.zoo["clean"].lr == 0.01


def cards_with(**others: NetworkCard) -> dict[str, NetworkCard]:
    return planning.cards() | others


def pair_faults(clean: NetworkCard, shortcut: NetworkCard, **changes: object) -> list[Fault]:
    pairs = [{"front": "clean-0", "end": "clean-1"}, {"front": "clean-0", "end": "shortcut-2"}]
    made = planning.sweep(pairs=pairs, **{"cuts": "blocks", **changes})
    return list(card_faults(made, {"clean": clean, "shortcut": shortcut}))


def test_token_counts_that_differ_must_be_square_grids():
    for alike in (planning.token_card(17, width=8), planning.token_card(50)):
        assert pair_faults(planning.token_card(17), alike) == []
    assert pair_faults(planning.token_card(19), planning.token_card(19)) == []
    (fault,) = pair_faults(planning.token_card(17), planning.token_card(19))
    assert fault.place == "pairs[1]"
    assert "19 tokens are no square grid" in fault.message


def test_identity_needs_equal_shapes():
    wide, narrow = planning.token_card(17, width=32), planning.token_card(17, width=8)
    assert pair_faults(wide, wide, training={"init": "identity"}) == []
    (fault,) = pair_faults(wide, narrow, training={"init": "identity"})
    assert fault.place == "pairs[1]"
    assert "(17, 32)" in fault.message
    assert "(17, 8)" in fault.message


def test_classes_must_match():
    (fault,) = pair_faults(planning.map_card(), planning.map_card(classes=100))
    assert (fault.place, "10 classes" in fault.message) == ("pairs[1]", True)


def test_every_refused_cut_is_not_spelled_out():
    known = {"clean": planning.map_card(), "shortcut": planning.token_card(19)}
    made = planning.sweep(pairs=[{"front": "shortcut-2", "end": "clean-0"}], cuts="blocks")
    (fault,) = card_faults(made, known)
    assert "and 2 more" in fault.message


def test_unknown_cuts_and_empty_sets_are_faults_of_the_cuts():
    made = planning.sweep(cuts=["blocks.0", "blocks.9"])
    (fault,) = card_faults(made, planning.cards())
    assert fault.place == "cuts"
    assert "blocks.9" in fault.message
    made = planning.sweep(cuts={"clean": "stages", "shortcut": "blocks"}, objectives=["dm"])
    (fault,) = card_faults(made, planning.cards())
    assert fault.place == "cuts.clean"


def test_fula_cuts_are_looked_up_only_where_fula_is_asked_for():
    made = planning.sweep(fula_cuts=["blocks.9"])
    assert [f.place for f in card_faults(made, planning.cards())] == ["fula_cuts"]
    made = planning.sweep(fula_cuts=["blocks.9"], objectives=["dm"])
    assert card_faults(made, planning.cards()) == ()


@pytest.mark.parametrize(
    ("classes", "place", "message"),
    [
        ("[cat]", "data.classes", "has only 1; give at least 2"),
        ("[]", "data.classes", "is empty; give at least 2"),
        ("[cat, [dog]]", "data.classes[1]", "['dog'] should be a text (put it in quotes)"),
        ("5", "data.classes", "should be a list of classes, or a file with one a line"),
    ],
)
def test_a_fault_of_the_classes_is_told_once(classes, place, message):
    data = f"data: {{source: imagefolder, path: photos, classes: {classes}}}"
    assert parse_sweep(GOOD.replace("data: digits", data))[1] == (Fault(place, message),)


def test_a_question_ends_no_sentence():
    with pytest.raises(RaystitchError, match=r"\(did you mean 'blocks\.3'\?\)\.$"):
        planning.map_card().cut("blocks.33")


def test_a_misspelt_marker_is_told_the_nearest():
    text = GOOD.replace("test_marker: shortcut-2", "test_marker: pach") + "markers: {patch: {}}\n"
    found = faults_of(text)
    assert list(found) == ["pairs[1].test_marker"]
    assert "shortcut-2, patch (did you mean 'patch'?)" in found["pairs[1].test_marker"]
    assert faults_of(text.replace("pach", "patch")) == {}
    faulty = faults_of(text.replace("pach", "patch").replace("patch: {}", "patch: {size: 0}"))
    assert list(faulty) == ["markers.patch.size"]


def test_normalisers_must_fit_the_images():
    zoo = {
        "clean": {"arch": "raystitch/cnn5", "seeds": [0, 1], "mean": [0.5], "std": [0.5]},
        "shortcut": {"arch": "raystitch/cnn5", "seeds": [2], "marker": {"size": 4}},
    }
    found = card_faults(planning.sweep(zoo=zoo), planning.cards())
    assert [fault.place for fault in found] == ["zoo.clean.mean"]


def test_entries_without_a_card_are_passed_by():
    assert card_faults(planning.sweep(pairs="all"), {}) == ()


def test_simclr_of_a_network_without_a_linear_head_is_a_fault_of_its_entry():
    zoo = {
        "clean": {"arch": "raystitch/cnn5", "seeds": [0, 1]},
        "simclr": {"arch": "torchvision/squeezenet1_1", "recipe": "simclr"},
    }
    headless = dataclasses.replace(planning.map_card(), linear_head=False)
    cards = {"clean": headless, "simclr": planning.map_card()}
    assert card_faults(planning.sweep(zoo=zoo), cards) == ()
    (fault,) = card_faults(planning.sweep(zoo=zoo), {**cards, "simclr": headless})
    assert fault.place == "zoo.simclr.recipe"
    assert "torchvision/squeezenet1_1 does not have" in fault.message


@pytest.mark.parametrize(
    ("block", "place", "sentence"),
    [
        ("{excessive: true}", "evaluation.excessive", "no pair has a marker"),
        ("{test_iris: true}", "evaluation.test_iris", "no protocol uses IRIs; add one of foreign"),
        ("{robust: {epz: 1}}", "evaluation.robust.epz", "did you mean 'eps'"),
        ("{robust: {eps: 9}}", "evaluation.robust.eps", "should be at most 1"),
        ("{robust: 8}", "evaluation.robust", "a mapping"),
        ("{representation: {images: 3}}", "evaluation.representation.images", "at least 4"),
        ("{excesive: true}", "evaluation.excesive", "did you mean 'excessive'"),
    ],
)
def test_faults_of_measures(block: str, place: str, sentence: str):
    text = GOOD[: GOOD.index("  - {front: shortcut-2")]
    faults = faults_of(f"{text}protocols: [standard]\nevaluation: {block}\n")
    assert list(faults) == [place]
    assert sentence in faults[place]


def test_apgd_dlr_needs_three_classes():
    sweep, _ = parse_sweep(GOOD + "evaluation: {robust: true}\n")
    assert sweep is not None
    card = planning.map_card(classes=2)
    faults = card_faults(sweep, {"clean": card, "shortcut": card})
    assert [fault.place for fault in faults] == ["evaluation.robust"]
    assert "clean has 2 classes" in faults[0].message
    assert card_faults(sweep, planning.cards()) == ()
