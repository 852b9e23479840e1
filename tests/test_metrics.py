"""Metrics against the reference vectors and closed forms; sums travel, ratios stay home."""

import numpy as np
import pytest
import torch
from scipy.stats import binom, bootstrap

import vectors
from raystitch.stitching.evaluate import EVALUATION_BATCH, answer_scores
from raystitch.stitching.metrics import (
    Sums,
    agreement_probability,
    interval,
    kappa,
    scores,
    update,
)
from raystitch.stitching.objectives import Answer

METRICS = vectors.load()["metrics"]
LOGITS, END = vectors.tensor(METRICS["logits"]), vectors.tensor(METRICS["end_logits"])
LABELS = torch.tensor(METRICS["labels"])

REFERENCE = {
    "accuracy": "accuracy",
    "end_accuracy": "accuracy_end",
    "soft_accuracy": "soft_accuracy",
    "end_soft_accuracy": "soft_accuracy_end",
    "hard_agreement": "hard_agreement",
    "agreement_probability": "agreement",
    "hard_error_consistency": "error_consistency",
    "soft_error_consistency": "soft_error_consistency",
}


def one_hot_logits(classes, count=10):
    return 50 * torch.nn.functional.one_hot(torch.tensor(classes), count).float()


def test_every_reference_metric_is_tested():
    given = {name for name, value in METRICS.items() if isinstance(value, float)}
    assert given == set(REFERENCE)


@pytest.mark.parametrize("name", REFERENCE)
def test_reference_values(name):
    found = scores(update(LOGITS, END, LABELS))[REFERENCE[name]]
    # A percent is known to 1e-5 of its share; single precision gave the reference.
    assert found == pytest.approx(METRICS[name], abs=1e-5, rel=1e-6)


def test_agreement_probability_closed_form():
    h, g = torch.tensor([[0.9, 0.1]]).log(), torch.tensor([[0.6, 0.4]]).log()
    assert float(agreement_probability(h, g)) == pytest.approx(0.58 / 0.82)
    assert float(agreement_probability(g, h)) == pytest.approx(0.58 / 0.82)
    uniform = torch.zeros(1, 10)
    assert float(agreement_probability(uniform, uniform)) == pytest.approx(1)


def test_hard_agreement_and_prediction_agreement_differ():
    found = scores(
        update(
            one_hot_logits([1, 2, 3, 4]), one_hot_logits([1, 5, 6, 7]), torch.tensor([1, 0, 0, 0])
        )
    )
    assert found["hard_agreement"] == pytest.approx(100)
    assert found["prediction_agreement"] == pytest.approx(25)


def test_kappa_closed_forms():
    assert kappa(0.9, 0.9 * 0.8 + 0.1 * 0.2) == pytest.approx(0.61538, abs=1e-5)
    assert kappa(1.0, 1.0) == 1


def test_error_consistency_is_of_the_whole_set_not_a_mean_of_chunks():
    right, right_end = [1, 1, 1, 1, 1, 0, 0, 0], [1, 1, 1, 1, 0, 1, 0, 0]
    logits, end = one_hot_logits(right), one_hot_logits(right_end)
    labels = torch.ones(8, dtype=torch.int64)
    halves = [update(logits[c], end[c], labels[c]) for c in (slice(0, 4), slice(4, 8))]
    whole = scores(halves[0] + halves[1])["error_consistency"]
    assert whole == pytest.approx(0.4667, abs=1e-4)
    mean = sum(scores(half)["error_consistency"] for half in halves) / 2
    assert mean == pytest.approx(0.3333, abs=1e-4)


def test_sums_of_parts_give_the_scores_of_the_whole():
    generator = torch.Generator().manual_seed(0)
    h, g = (torch.randn(50, 7, generator=generator) for _ in range(2))
    labels = torch.randint(7, (50,), generator=generator)
    total = Sums()
    for part in torch.arange(50).split(13):
        total += update(h[part], g[part], labels[part])
    assert scores(total) == pytest.approx(scores(update(h, g, labels)))


def test_against_independent_definitions():
    generator = torch.Generator().manual_seed(1)
    h, g = (3 * torch.randn(200, 7, generator=generator) for _ in range(2))
    labels = torch.randint(7, (200,), generator=generator)
    found = scores(update(h, g, labels))
    top5 = [int(y) in h[i].argsort(descending=True)[:5].tolist() for i, y in enumerate(labels)]
    per_image = agreement_probability(h, g)
    own = torch.distributions.Categorical(logits=h.double()).entropy()
    accuracy, accuracy_end = ((x.argmax(1) == labels).double().mean() * 100 for x in (h, g))
    assert found["accuracy"] == pytest.approx(float(accuracy))
    assert found["accuracy_top5"] == pytest.approx(100 * sum(top5) / 200)
    assert found["relative_accuracy"] == pytest.approx(float(100 * accuracy / accuracy_end))
    assert found["stitching_penalty"] == pytest.approx(float(accuracy_end - accuracy))
    assert found["entropy"] == pytest.approx(float(own.mean()))
    assert found["agreement_sem"] == pytest.approx(100 * float(per_image.std() / 200**0.5))


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_the_interval_over_images_is_binomial_on_answers_of_zero_and_one(share):
    """Drawing n of k ones again gives Binomial(n, k/n): its quantiles are known."""
    images, ones = 400, round(400 * share)
    values = torch.zeros(images)
    values[torch.randperm(images, generator=torch.Generator().manual_seed(0))[:ones]] = 1
    low, high = interval(values)
    known = [float(binom.ppf(q, images, ones / images)) / images for q in (0.025, 0.975)]
    # The quantile of 1000 draws itself has a standard error of about 0.09 deviations.
    error = 3 * 0.09 * (share * (1 - share) / images) ** 0.5
    assert (low, high) == pytest.approx(known, abs=error + 1 / images)


def test_the_interval_over_images_is_that_of_scipy():
    values = torch.rand(300, generator=torch.Generator().manual_seed(0)).double() ** 3
    found = bootstrap((values.numpy(),), np.mean, method="percentile", n_resamples=20_000, rng=0)
    deviation = float(values.std()) / 300**0.5
    assert interval(values) == pytest.approx(found.confidence_interval, abs=3 * 0.09 * deviation)


def test_the_interval_over_images_is_the_same_each_time_and_moves_with_the_values():
    values = torch.rand(37, generator=torch.Generator().manual_seed(0)).double()
    low, high = interval(values)
    assert interval(values) == (low, high)
    assert interval(2 * values + 1) == pytest.approx((2 * low + 1, 2 * high + 1))
    assert interval(torch.full((37,), 0.25)) == pytest.approx((0.25, 0.25))
    assert low < float(values.mean()) < high


def test_scores_of_answers_carry_the_interval_in_percent():
    generator = torch.Generator().manual_seed(0)
    # More images than one batch of evaluation: the interval is of the whole set.
    h, g = (2 * torch.randn(EVALUATION_BATCH + 90, 5, generator=generator) for _ in range(2))
    labels = torch.zeros(len(h), dtype=torch.int64)
    found = answer_scores(Given(h), Given(g), labels)
    wanted = interval(agreement_probability(h, g))
    assert (found["agreement_low"], found["agreement_high"]) == pytest.approx(
        tuple(100 * end for end in wanted)
    )
    assert found["agreement_low"] < found["agreement"] < found["agreement_high"]


class Given:
    """Answers that are there already."""

    def __init__(self, logits):
        self.logits = logits

    def __len__(self):
        return len(self.logits)

    def __call__(self, positions):
        return Answer({}, self.logits[positions])
