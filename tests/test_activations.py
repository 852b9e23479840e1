"""What frozen networks answer, kept: the right rows, made once, bounded, safe among processes."""

import multiprocessing
import os
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from raystitch.compute import Compute
from raystitch.data.images import LabelledImages
from raystitch.run.activation_cache import ActivationCache
from raystitch.run.activations import (
    ActivationSets,
    Frozen,
    Kept,
    Recomputed,
)
from raystitch.sweep.keeping import COMPUTE_BATCH, LOGITS
from raystitch.zoo.cuts import CutNetwork
from raystitch.zoo.models import build, freeze

CPU, PLAIN = torch.device("cpu"), Compute()
CUTS = ("blocks.1", "blocks.4")


def images(count: int, seed: int = 0) -> LabelledImages:
    rng = np.random.default_rng(seed)
    pixels = rng.integers(0, 256, (count, 3, 16, 16), dtype=np.uint8)
    return LabelledImages(pixels, np.zeros(count, np.int64), np.arange(count))


@pytest.fixture(scope="module")
def cut_network() -> CutNetwork:
    return CutNetwork(
        freeze(build("raystitch/cnn5", {}, classes=10, input_shape=(3, 16, 16), seed=0))
    )


@pytest.fixture
def passes(monkeypatch) -> list[int]:
    """Images of every pass of a network, as they are computed."""
    found: list[int] = []
    compute = Recomputed.__call__

    def counted(self, positions):
        found.append(len(positions))
        return compute(self, positions)

    monkeypatch.setattr(Recomputed, "__call__", counted)
    return found


def frozen(network: CutNetwork, compute: Compute = PLAIN, name: str = "net") -> Frozen:
    return Frozen(network.under(compute), {"digest": name})


def kept_by(
    folder: Path,
    *,
    compute: Compute = PLAIN,
    limit: int = 2**30,
    memory: int = 2**30,
    flops_per_byte: float = 0,
) -> ActivationSets:
    return ActivationSets(ActivationCache(folder, limit), memory, flops_per_byte, compute, CPU)


@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
@pytest.mark.parametrize("shared", [True, False])
def test_what_is_kept_is_what_the_network_answers(cut_network, tmp_path, layout, shared) -> None:
    compute, given = Compute(layout=layout), images(COMPUTE_BATCH + 9)
    sets = kept_by(tmp_path, compute=compute)
    answers = sets(frozen(cut_network, compute), (*CUTS, LOGITS), given, shared=shared)
    assert isinstance(answers, Kept)
    assert len(answers) == len(given)
    positions = torch.tensor([len(given) - 1, 3, 0])
    found = answers(positions)
    pixels = torch.from_numpy(given.images[positions.numpy()]).float() / 255
    with torch.no_grad():
        logits, activations = cut_network.observer(CUTS).observe(pixels)
    assert found.logits is not None
    assert torch.allclose(found.logits, logits, atol=1e-5)
    for cut, activation in zip(CUTS, activations, strict=True):
        assert found.activations[cut].shape == activation.shape
        assert torch.allclose(found.activations[cut], activation, atol=1e-5)
    last = found.activations["blocks.1"].is_contiguous(memory_format=torch.channels_last)
    assert last == (layout == "channels_last")


def test_shared_answers_are_computed_once_for_all(cut_network, tmp_path, passes) -> None:
    given = images(10)
    for sets in (kept_by(tmp_path), kept_by(tmp_path)):
        for _ in range(2):
            sets(frozen(cut_network), (*CUTS, LOGITS), given, shared=True)(torch.arange(10))
    assert passes == [10]
    # A further cut is all that is computed, and by the front half alone.
    sets(frozen(cut_network), ("blocks.0", "blocks.1"), given, shared=True)
    assert passes == [10, 10]
    sets(frozen(cut_network, name="other"), (LOGITS,), given, shared=True)
    sets(frozen(cut_network), (LOGITS,), images(10, seed=1), shared=True)
    assert passes == [10, 10, 10, 10]


def test_a_units_own_answers_are_kept_once_and_leave_no_file(cut_network, tmp_path, passes) -> None:
    answers = kept_by(tmp_path)(
        frozen(cut_network), (*CUTS, LOGITS), images(10), shared=False, along=(LOGITS,)
    )
    for _ in range(3):
        answers(torch.arange(10))
    assert passes == [10]
    assert list(tmp_path.iterdir()) == []


def test_further_places_come_along_only_where_they_are_kept(cut_network, tmp_path) -> None:
    def logits(sets: ActivationSets) -> bool:
        network, given = frozen(cut_network), images(10)
        answers = sets(network, CUTS[:1], given, shared=False, along=(LOGITS,))
        return answers(torch.arange(2)).logits is not None

    assert logits(kept_by(tmp_path))
    assert not logits(kept_by(tmp_path, memory=0, limit=0))


def test_what_does_not_fit_is_computed_again(cut_network, tmp_path, passes) -> None:
    sets = kept_by(tmp_path, memory=10 * cut_network.card.cut("blocks.4").bytes, limit=0)
    network, given = frozen(cut_network), images(10)
    large = sets(network, ("blocks.0",), given, shared=True)
    small = sets(network, ("blocks.4",), given, shared=True)
    assert (type(large), type(small)) == (Recomputed, Kept)
    passes.clear()
    for _ in range(2):
        large(torch.arange(4)), small(torch.arange(4))
    assert passes == [4, 4]
    assert isinstance(sets(network, ("blocks.4",), given, shared=False), Recomputed)
    sets.begin()  # what the last unit kept is no longer counted
    assert isinstance(sets(network, ("blocks.4",), given, shared=False), Kept)


def test_what_is_sooner_computed_than_read_is_not_kept(cut_network, tmp_path) -> None:
    cut = cut_network.card.cut("blocks.0")
    per_byte = cut.flops / cut.bytes
    for factor, kind in ((0.99, Kept), (1.01, Recomputed)):
        sets = kept_by(tmp_path, flops_per_byte=factor * per_byte)
        found = sets(frozen(cut_network), ("blocks.0",), images(10), shared=True)
        assert isinstance(found, kind)


@pytest.mark.parametrize(("keep", "bits"), [("bfloat16", 8), ("float16", 11)])
def test_less_precision_is_the_same_kept_or_not_and_its_error_is_measured(
    cut_network, tmp_path, keep, bits
) -> None:
    compute, given = Compute(keep=keep), images(10)
    network = frozen(cut_network, compute)
    with torch.no_grad():
        exact = cut_network.front("blocks.1")(torch.from_numpy(given.images).float() / 255)
    found, errors = [], []
    for memory, limit, shared in ((2**30, 0, False), (0, 2**30, True), (0, 0, True)):
        sets = kept_by(tmp_path / str(limit), compute=compute, memory=memory, limit=limit)
        answers = sets(network, ("blocks.1",), given, shared=shared)
        found.append(answers(torch.arange(10)).activations["blocks.1"])
        errors.append(sets.error)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])
    measured = float((found[0] - exact).norm() / exact.norm())
    assert errors[0] == errors[1] == pytest.approx(measured, rel=1e-3)
    # Rounding to so many bits is off by at most half a unit of the last one.
    assert 0 < measured < 2**-bits


def array(cache: ActivationCache, key: str, count: int) -> bool:
    """Make an array of so many float32 ones; whether there was room."""
    with cache.making(key, (count,), torch.float32) as new:
        if new is None:
            return False
        new.tensor.fill_(1)
        new.facts["by"] = key
    return True


def folder_of(cache: ActivationCache) -> Path:
    with cache.building("x"):
        return cache.folder


def test_what_was_not_used_for_longest_goes_first(tmp_path) -> None:
    cache = ActivationCache(tmp_path / "cache", 1100 * 4)
    folder_of(cache)
    for number, key in enumerate("abc"):
        assert array(cache, key, 300)
        os.utime(cache.folder / f"{key}.bin", (number, number))
    entry = cache.get("a")  # used just now, and then no longer
    assert entry is not None
    assert entry.facts["by"] == "a"
    assert torch.equal(entry.tensor, torch.ones(300))
    entry.hold.close()
    assert array(cache, "d", 300)
    assert [key for key in "abcd" if (cache.folder / f"{key}.bin").is_file()] == ["a", "c", "d"]
    size = sum(path.stat().st_size for path in cache.folder.glob("*.bin"))
    assert size <= cache.limit


def test_what_is_in_use_stays_and_leaves_no_room(tmp_path) -> None:
    cache = ActivationCache(tmp_path / "cache", 500 * 4)
    folder_of(cache)
    assert array(cache, "a", 300)
    held = cache.get("a")
    assert not array(cache, "b", 300)
    assert held is not None
    held.hold.close()
    assert array(cache, "b", 300)
    assert cache.get("a") is None


def test_nothing_unfinished_is_ever_read(tmp_path) -> None:
    cache = ActivationCache(tmp_path / "cache", 2**20)
    folder_of(cache)
    with pytest.raises(RuntimeError), cache.making("a", (4,), torch.float32):
        raise RuntimeError("stopped")
    assert cache.get("a") is None
    assert list(cache.folder.glob("*.bin")) == []


def _build(folder: Path, log: Path) -> None:
    cache = ActivationCache(folder, 2**20)
    with cache.building("key"):
        if cache.get("key") is None:
            with log.open("a") as lines:
                lines.write("built\n")
            time.sleep(0.3)
            assert array(cache, "key", 100)
    found = cache.get("key")
    assert found is not None
    assert float(found.tensor.sum()) == 100


def test_processes_that_want_the_same_build_it_once(tmp_path) -> None:
    spawn = multiprocessing.get_context("fork")
    arguments = (tmp_path / "cache", tmp_path / "log")
    workers = [spawn.Process(target=_build, args=arguments) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert [worker.exitcode for worker in workers] == [0, 0, 0]
    assert (tmp_path / "log").read_text() == "built\n"
