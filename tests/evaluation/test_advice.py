"""Notes about runs that look wrong, and silence about those that do not."""

import numpy as np
import pytest

from covey import agents
from covey.evaluation.advice import SAME, Facts, notes
from covey.evaluation.stats import Interval
from covey.hyper.names import by_name
from covey.hyper.range import Range
from covey.run.config import default_config
from covey.run.presets import PRESETS

SPACE = {"actor_lr": Range(1e-5, 3e-3), "discount": Range(0.9, 0.999, "one_minus"), "noise": Range(0.1, 0.5, "linear")}


@pytest.mark.parametrize(
    ("hyper", "named"),
    [
        ({"actor_lr": 10.0}, "actor_lr 10 (usual: 1e-05 to 0.003)"),
        ({"actor_lr": 1e-9}, "actor_lr 1e-09"),
        ({"noise.1": 2.0}, "noise.1 2"),
        ({"discount": 0.0}, ""),
        ({"discount": 0.99999}, "discount 0.99999"),
        ({"noise": 1.5}, "noise 1.5"),
        ({"actor_lr": 0.01, "noise": 0.8}, ""),
        ({"actor_lr": 0.0}, ""),
    ],
)
def test_values_far_outside_of_their_range(hyper: dict[str, float], named: str):
    found = notes(Facts(hyper={name: (value, value) for name, value in hyper.items()}, space=SPACE))
    assert (named in found[0]) if named else found == []


@pytest.mark.parametrize(("algorithm", "env"), [*((name, "point") for name in agents.REGISTRY), *PRESETS])
def test_no_default_and_no_preset_is_far_outside(algorithm: str, env: str):
    config = default_config(algorithm, **PRESETS.get((algorithm, env), {}))
    values = {name: (each.start, each.end) for name, each in by_name(config.schedules()).items()}
    assert notes(Facts(hyper=values, space=agents.entry(algorithm).space)) == []


def test_evaluations_that_never_change():
    same = np.array([[-10.0, -11.0]])
    assert "does not change" in notes(Facts(evaluations=[same + 1, *[same] * SAME]))[0]
    assert notes(Facts(evaluations=[same] * (SAME - 1))) == []
    assert notes(Facts(evaluations=[*[same] * (SAME - 1), same + 1e-3])) == []
    assert notes(Facts(evaluations=[np.full((1, 2), 1000.0)] * SAME)) == [], "a solved task: every episode is the same"


def test_a_run_that_ends_no_better_than_it_began():
    untrained = Interval(-100.0, -110.0, -90.0)
    assert notes(Facts(untrained=untrained, final=Interval(-50.0, -60.0, -40.0))) == []
    (text,) = notes(Facts(untrained=untrained, final=Interval(-95.0, -105.0, -85.0)))
    assert "-100.0 [-110.0, -90.0]" in text and "limits" not in text
    (text,) = notes(Facts(untrained=untrained, final=untrained, actions=np.array([[1.0], [-0.995]])))
    assert "All its actions are at their limits." in text
    single = Interval(-100.0, np.nan, np.nan)
    assert notes(Facts(untrained=single, final=single)) == [], "one episode tells nothing"
