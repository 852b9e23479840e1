"""The mini sweeps show the paper's shapes, and `scripts/check_shapes.py` tells when they do not."""

import importlib.util
import sys
from pathlib import Path

import polars as pl
import pytest

import raying
from raystitch.results.store import Storage
from raystitch.run.planning import load_sweep, make_plan

ROOT = Path(__file__).parents[1]
SPEC = importlib.util.spec_from_file_location("check_shapes", ROOT / "scripts/check_shapes.py")
assert SPEC is not None
assert SPEC.loader is not None
check_shapes = importlib.util.module_from_spec(SPEC)
sys.modules["check_shapes"] = check_shapes
SPEC.loader.exec_module(check_shapes)

CELLS = {"mini_information": 144, "mini_shortcut": 99, "mini_adversarial": 132}
"""As the comments of the files count them."""


@pytest.fixture(scope="module")
def storage(tmp_path_factory):
    return Storage(tmp_path_factory.mktemp("runs"))


@pytest.mark.parametrize(("name", "cells"), CELLS.items())
def test_a_mini_sweep_has_the_cells_that_its_comments_count(name, cells, storage):
    context = load_sweep(ROOT / f"sweeps/{name}.yaml", storage)
    assert len(make_plan(context).cells) == cells


@pytest.mark.parametrize("name", CELLS)
def test_every_shape_asks_for_cells_that_there_are(name, storage):
    """Measured on rows that all say 50, each shape has a figure and none is missing."""
    context = load_sweep(ROOT / f"sweeps/{name}.yaml", storage)
    columns = ("front_model", "end_model", "end_cut", "objective", "protocol")
    columns = (*columns, "control", "stitch_marker", "test_marker")
    cells = make_plan(context).cells
    rows = pl.DataFrame(
        {column: [getattr(cell, column) for cell in cells] for column in columns},
        schema=dict.fromkeys(columns, pl.String),
    ).with_columns(agreement=pl.lit(50.0), accuracy=pl.lit(50.0), excessive_agreement=pl.lit(50.0))
    figures = check_shapes.Figures(rows)
    shapes = check_shapes.SHAPES[name]()
    assert {shape.measured(figures) for shape in shapes} <= {0.0, 50.0}
    assert not all(shape.line(figures)[0] for shape in shapes)
    empty = check_shapes.Figures(rows.clear())
    assert all("missing" in shape.line(empty)[1] for shape in shapes)


def test_a_figure_beyond_its_limit_fails():
    rows = pl.DataFrame({"end_cut": ["a", "a", "b"], "agreement": [10.0, 30.0, 60.0]})
    figures = check_shapes.Figures(rows)
    shape = check_shapes.Shape("two", lambda f: max(f.all(end_cut="a")), low=20, high=30)
    assert shape.line(figures)[0]
    assert not check_shapes.Shape("b", lambda f: f.all(end_cut="b")[0], high=30).line(figures)[0]


def test_what_is_not_there_cannot_be_checked(tmp_path, capsys):
    assert check_shapes.main(["mini_information", "--storage", str(tmp_path)]) == 2
    assert check_shapes.main(["quickstart", "--storage", str(tmp_path)]) == 2
    assert "mini_information" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", CELLS)
def test_a_mini_sweep_shows_the_shapes(name, tmp_path):
    raying.on_ray(ROOT / f"sweeps/{name}.yaml", tmp_path)
    assert check_shapes.main([name, "--storage", str(tmp_path)]) == 0
