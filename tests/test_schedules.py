"""Schedules look at one curve: when the rate falls, when training ends."""

import pytest

from raystitch import names
from raystitch.settings import Training
from raystitch.stitching.schedules import SCHEDULES, Plateau, Step


def follow(schedule, losses, steps_per_epoch=1):
    return [
        schedule.advise(i + 1, (i + 1) * steps_per_epoch, loss) for i, loss in enumerate(losses)
    ]


def test_the_schedules_are_those_that_users_write():
    assert tuple(SCHEDULES) == names.SCHEDULES


def test_plateau_drops_twice_then_stops():
    advice = follow(Plateau(Training(min_epochs=0), 1, 1.0), [1.0] * 9)
    assert advice == ["go", "go", "drop", "go", "go", "drop", "go", "go", "stop"]


def test_improvement_of_the_threshold_resets_the_patience():
    advice = follow(Plateau(Training(min_epochs=0), 1, 1.0), [1.0, 1.0, 0.99, 0.99, 0.99, 0.99])
    assert advice == ["go", "go", "go", "go", "go", "drop"]
    too_little = follow(Plateau(Training(min_epochs=0), 1, 1.0), [0.999, 0.998, 0.997])
    assert too_little[-1] == "drop"


@pytest.mark.parametrize(
    ("training", "steps_per_epoch", "expected"),
    [
        (Training(min_epochs=30), 1, 30),
        (Training(min_epochs=30, min_steps=1000), 100, 10),
        (Training(min_epochs=30, epochs=12), 1, 12),
    ],
)
def test_no_stop_before_the_least_epochs_or_steps_nor_after_the_most(
    training, steps_per_epoch, expected
):
    advice = follow(Plateau(training, 1, 1.0), [1.0] * 40, steps_per_epoch)
    assert advice.index("stop") + 1 == expected


def test_a_loss_that_is_not_a_number_never_improves():
    schedule = Plateau(Training(min_epochs=0), 1, 1.0)
    assert follow(schedule, [float("nan")] * 9)[-1] == "stop"


def test_step_drops_at_thirds_and_runs_all_epochs():
    schedule = Step(Training(schedule="step", epochs=30), 1, 1.0)
    advice = follow(schedule, [0.0] * 30)
    assert [i + 1 for i, a in enumerate(advice) if a == "drop"] == [10, 20]
    assert advice.index("stop") == 29
    assert schedule.reason == "schedule"


def test_budget_multiplies_the_course():
    assert follow(Step(Training(epochs=3), 4, 1.0), [0.0] * 12).index("stop") == 11
    advice = follow(Plateau(Training(min_epochs=30), 4, 1.0), [1.0] * 200)
    assert advice.index("drop") == 11
    assert advice.index("stop") + 1 == 120
