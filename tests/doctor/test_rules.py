"""Every rule on constructed facts: what it finds, and what it leaves alone."""

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from covey import agents
from covey.doctor import RULES, Curve, Facts, Finding, findings
from covey.doctor.examine import curves_of
from covey.doctor.facts import MINOR, SERIOUS, SEVERE, Data, Fault
from covey.doctor.outcome_rules import SAME
from covey.doctor.watch import MOST_POINTS, Watch
from covey.evaluation.probe import Probe, Units
from covey.evaluation.stats import Interval
from covey.hyper.names import by_name
from covey.hyper.range import Range
from covey.run.config import default_config
from covey.run.presets import PRESETS
from covey.storage.lineage import Lineage

SPACE = {"actor_lr": Range(1e-5, 3e-3), "discount": Range(0.9, 0.999, "one_minus"), "noise": Range(0.1, 0.5, "linear")}
STEPS = np.arange(8) * 100


def curve(*values: float | list[float]) -> Curve:
    """A curve of one member, or of several; a single number is constant."""
    found = np.array(values * 8 if len(values) == 1 else values, float)
    return Curve(STEPS[: len(found)], found.reshape(len(found), -1))


def data(**parts: Any) -> Data:
    """A healthy replay of 1,000 transitions, with the given parts."""
    random = np.random.default_rng(0)
    n = 1000
    healthy = {
        "obs": random.normal(size=(n, 3)),
        "action": random.uniform(-1, 1, size=(n, 2)),
        "reward": random.normal(size=n),
        "terminated": np.zeros(n),
        "returns": random.uniform(-10, 10, size=n),
    }
    return Data(**(healthy | parts))


def probe(**parts: Any) -> Probe:
    """Healthy networks, with the given parts."""
    random = np.random.default_rng(1)
    values = random.normal(size=(1, 100)) + 0.1 * random.normal(size=(2, 100))
    healthy = {"values": values, "greedy": random.uniform(-0.9, 0.9, size=(100, 2)), "spread": np.full(2, 0.1)}
    healthy |= {"units": {"actor": Units(0.2, 5.0)}, "gradients": {"actor_optimiser": 1.0}}
    return Probe(**(healthy | parts))


def lineage(fitness: list[list[float]], replaced: bool = True, **hyper: list[list[float]]) -> Lineage:
    """A population with a generation for each row; every value of a hyper-parameter is a row too."""
    values = np.array(fitness)
    reason = np.full(values.shape, "kept", dtype="<U6")
    if replaced:
        reason[1, 0] = "worse"
    numbers = np.arange(len(values))
    parent = np.tile(np.arange(values.shape[1]), (len(values), 1))
    return Lineage(numbers, numbers * 100, values, parent, reason, {n: np.array(x) for n, x in hyper.items()})


TEMPERATURE = {"agent/temperature": curve(0.5), "agent/entropy": curve(-2.0), "hyper/target_entropy": curve(-1.0)}
EVALUATED = {"eval/return": curve(-20.0), "eval/length": curve(20.0), "hyper/discount": curve(0.9)}
MOVING = {"agent/temperature": curve(*np.linspace(1.0, 0.5, 8).tolist())}
FOUND = {
    "environment_not_finite": [{"fault": Fault("observation", 0, 300)}],
    "loss_not_finite": [{"fault": Fault("critic_loss", 1, 300)}],
    "far_outside": [{"hyper": {"actor_lr": (10.0, 10.0)}, "space": SPACE}],
    "rewards_are_constant": [{"data": data(reward=np.zeros(1000))}, {"data": data(reward=np.ones(1000))}],
    "rewards_are_sparse": [{"data": data(reward=np.eye(1000)[0])}],
    "reward_scale": [{"data": data(reward=np.full(1000, 1e6) + np.arange(1000))}, {"data": data(reward=1e-7 * STEPS)}],
    "observations_are_constant": [{"data": data(obs=np.ones((1000, 2)))}],
    "observation_scale": [
        {"data": data(obs=100.0 * data().obs)},
        {"data": data(obs=np.array([1.0, 1.0, 1e-4]) * data().obs)},
    ],
    "episodes_end_at_once": [{"curves": {"train/length": curve(1.5)}, "episode_length": 200}],
    "episodes_never_end": [{"curves": {"train/episodes": curve(0.0)}}],
    "warmup_is_short": [{"options": {"warmup": 50, "agent.batch_size": 512}}],
    "critics_are_identical": [{"probes": [probe(values=np.tile(np.arange(100.0), (2, 1)))]}],
    "critics_are_apart": [{"probes": [probe(values=np.array([[5.0], [-5.0]]) + np.linspace(0, 1, 100))]}],
    "values_diverge": [{"curves": EVALUATED | {"agent/q_mean": curve(1, 2, 4, 8, 16, 1e3, 1e3, 1e3)}}],
    "values_are_far_from_returns": [{"data": data(), "probes": [probe(values=probe().values + 50.0)]}],
    "units_are_dead": [{"probes": [probe(units={"critic": Units(0.9, 1.0)})]}],
    "units_explode": [{"probes": [probe(units={"critic": Units(0.1, 1e6)})]}],
    "gradients_are_extreme": [
        {"probes": [probe(gradients={"critic.optimiser": 1e7})]},
        {"probes": [probe(gradients={"actor_optimiser": 0.0})]},
    ],
    "temperature_dominates": [{"curves": TEMPERATURE | MOVING | {"agent/entropy": curve(20.0)}, "data": data()}],
    "temperature_collapsed": [{"curves": {"agent/temperature": curve(1e-8)}}],
    "temperature_is_stuck": [{"curves": TEMPERATURE | {"agent/entropy": curve(-0.6)}, "action_size": 2}],
    "entropy_is_impossible": [{"curves": {"hyper/target_entropy": curve(1.0)}}],
    "entropy_is_not_met": [{"curves": TEMPERATURE | MOVING | {"agent/entropy": curve(-8.0)}, "action_size": 2}],
    "explores_nothing": [{"probes": [probe(spread=np.zeros(2))]}],
    "actor_is_saturated": [
        {"probes": [probe(greedy=np.ones((100, 2)))]},
        {"curves": {"eval/action_limits": curve(1.0), "eval/action_change": curve(0.0)}},
    ],
    "jumps_between_limits": [{"curves": {"eval/action_limits": curve(0.9), "eval/action_change": curve(1.8)}}],
    "repeats_never_or_always": [
        {"curves": {"agent/repeat_probability": curve(0.999)}},
        {"curves": {"agent/repeat_probability": curve(0.0)}},
    ],
    "skills_are_alike": [
        {
            "curves": {"skills/information": curve(0.1)},
            "options": {"agent.skills.kind": "discrete", "agent.skills.number": 8},
            "is_skill_agent": True,
        },
        {"curves": {"skills/information": curve(0.01)}, "options": {"agent.skills.kind": "continuous"}},
    ],
    "population_never_replaces": [{"lineage": lineage([[1, 2, 3, 4]] * 3, replaced=False), "is_population": True}],
    "winners_are_at_an_edge": [
        {
            "lineage": lineage([[1, 2, 3, 4]] * 3, lr=[[1e-4] * 4, [1e-4] * 4, [1e-4, 2e-4, 1e-3, 1e-3]]),
            "ranges": {"lr": Range(1e-5, 1e-3)},
            "is_population": True,
        }
    ],
    "evaluation_is_below_training": [
        {"curves": {"eval/return": curve(*range(-8, 0)), "train/return": curve(*range(0, 8))}}
    ],
    "seeds_disagree": [{"curves": {"eval/return": curve(*[[x, 0.1 * x] for x in range(8)])}}],
    "never_changes": [{"evaluations": [np.array([[-10.0, -11.0]])] * SAME}],
    "no_better_than_untrained": [{"untrained": Interval(-9.0, -10.0, -8.0), "final": Interval(-9.0, -10.0, -8.0)}],
}
"""Facts in which a rule finds something, and no other rule does."""


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_a_rule_finds_what_it_is_for(rule: Any):
    for parts in FOUND[rule.__name__]:
        found = findings(Facts(progress=1.0)._replace(**parts))
        assert [each.rule for each in found] == [rule.__name__]
        assert "`" in found[0].remedy and any(letter.isdigit() for letter in found[0].evidence), found[0]
        assert str(found[0]).endswith(".") and "\n" not in str(found[0])


HEALTHY = {
    "curves": EVALUATED
    | TEMPERATURE
    | MOVING
    | {
        "eval/action_limits": curve(0.9),  # full throttle, but no jumps
        "eval/action_change": curve(0.1),
        "agent/q_mean": curve(-8.0),
        "agent/repeat_probability": curve(0.5),
        "eval/return": curve(*[[x, x + 0.5] for x in range(8)]),
        "train/return": curve(*[[x, x] for x in range(8)]),
        "train/length": curve(20.0),
        "train/episodes": curve(3.0),
    },
    "options": {"warmup": 1000, "agent.batch_size": 256},
    "data": data(),
    "probes": [probe()],
    "episode_length": 200,
    "action_size": 2,
    "evaluations": [np.array([[float(i), 0.0]]) for i in range(8)],
    "untrained": Interval(-9.0, -10.0, -8.0),
    "final": Interval(-2.0, -3.0, -1.0),
}


def test_healthy_facts_and_no_facts_give_nothing():
    assert findings(Facts(progress=1.0)._replace(**HEALTHY)) == []
    assert findings(Facts()) == [] == findings(Facts(progress=1.0))


def test_the_worst_comes_first_and_causes_before_symptoms():
    facts = Facts(progress=1.0, data=data(obs=np.hstack([data().obs, np.zeros((1000, 1))]), reward=np.zeros(1000)))
    facts = facts._replace(probes=[probe(greedy=np.ones((100, 2)), values=np.tile(np.linspace(-9, 9, 100), (2, 1)))])
    found = findings(facts)
    assert [each.severity for each in found] == [SEVERE, SERIOUS, SERIOUS, MINOR]
    named = [each.rule for each in found]
    assert named[:2] == ["rewards_are_constant", "critics_are_identical"]
    assert named[2:] == ["actor_is_saturated", "observations_are_constant"]


@pytest.mark.parametrize(
    ("rule", "parts"),
    [
        ("rewards_are_constant", {"data": data(reward=np.ones(1000), terminated=np.eye(1000)[5])}),  # survival
        ("rewards_are_constant", {"is_skill_agent": True}),
        ("reward_scale", {"options": {"agent.normalise.rewards": True}}),
        ("observation_scale", {"options": {"agent.sac.normalise.observations": True}}),
        ("episodes_end_at_once", {"episode_length": 2}),
        ("episodes_never_end", {"progress": 0.5}),
        ("warmup_is_short", {"options": {"warmup": 50, "agent.batch_size": 256}}),  # rounded up to 100
        ("values_diverge", {"progress": 0.4}),
        ("values_are_far_from_returns", {"options": {"agent.normalise.rewards": True}}),
        ("temperature_is_stuck", {"options": {"agent.fixed_temperature": True}}),
        ("entropy_is_not_met", {"options": {"agent.fixed_temperature": True}}),
        ("repeats_never_or_always", {"is_population": True}),
        ("seeds_disagree", {"is_population": True}),
        ("no_better_than_untrained", {"is_skill_agent": True}),
    ],
)
def test_a_rule_knows_its_exceptions(rule: str, parts: dict[str, Any]):
    facts = Facts(progress=1.0)._replace(**FOUND[rule][0])
    assert rule in [each.rule for each in findings(facts)]
    assert rule not in [each.rule for each in findings(facts._replace(**parts))]


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
    found = findings(Facts(hyper={name: (value, value) for name, value in hyper.items()}, space=SPACE))
    assert (named in found[0].evidence) if named else found == []


@pytest.mark.parametrize(("algorithm", "env"), [*((name, "point") for name in agents.REGISTRY), *PRESETS])
def test_no_default_and_no_preset_is_suspicious(algorithm: str, env: str):
    config = default_config(algorithm, **PRESETS.get((algorithm, env), {}))
    values = {name: (each.start, each.end) for name, each in by_name(config.schedules()).items()}
    sac = getattr(config.agent, "sac", config.agent)
    options = {"warmup": config.warmup, "agent.batch_size": sac.batch_size}
    assert findings(Facts(hyper=values, space=agents.entry(algorithm).space, options=options)) == []


def test_evaluations_that_never_change():
    same = np.array([[-10.0, -11.0]])
    assert "does not change" in findings(Facts(evaluations=[same + 1, *[same] * SAME]))[0].evidence
    assert findings(Facts(evaluations=[same] * (SAME - 1))) == []
    assert findings(Facts(evaluations=[*[same] * (SAME - 1), same + 1e-3])) == []
    assert findings(Facts(evaluations=[np.full((1, 2), 1000.0)] * SAME)) == [], "a solved task: episodes are the same"


def test_a_run_that_ends_no_better_than_it_began():
    untrained = Interval(-100.0, -110.0, -90.0)
    assert findings(Facts(untrained=untrained, final=Interval(-50.0, -60.0, -40.0))) == []
    (found,) = findings(Facts(untrained=untrained, final=Interval(-95.0, -105.0, -85.0)))
    assert "-100.0 [-110.0, -90.0]" in found.evidence and "limits" not in found.evidence
    (found,) = findings(Facts(untrained=untrained, final=untrained, actions=np.array([[1.0], [-0.995]])))
    assert "all its actions are at their limits" in found.evidence
    single = Interval(-100.0, np.nan, np.nan)
    assert findings(Facts(untrained=single, final=single)) == [], "one episode tells nothing"


def test_curves_take_the_last_row_of_a_step_and_whole_steps():
    rows = [(0, 0, 1.0), (0, 1, 2.0), (5, 0, 3.0), (5, 1, 4.0), (5, 1, 6.0), (9, 0, 7.0)]
    steps, members, values = (list(column) for column in zip(*rows, strict=True))
    columns = {"step": steps, "member": members, "value": values, "wall": values}
    found = curves_of({"hyper/sac/discount": columns})["hyper/discount"]
    assert found.steps.tolist() == [0, 5] and found.values.tolist() == [[1.0, 2.0], [3.0, 6.0]]
    assert curves_of({"x": columns}, [1])["x"].values.tolist() == [[2.0], [6.0]]


def test_the_values_of_returns_include_the_entropy_bonus():
    """The margin is the range of returns, and the bonus of a step over the horizon: 0.5 * 2 / (1 - 0.9) = 10."""
    facts = Facts(progress=1.0, data=data(returns=np.array([0.0, 10.0])), curves={"hyper/discount": curve(0.9)})
    with_bonus = facts._replace(curves=dict(facts.curves) | TEMPERATURE)
    for each, limit in ((facts, 20.0), (with_bonus, 30.0)):
        for value, expected in ((limit - 0.5, False), (limit + 0.5, True)):
            spread = np.linspace(-1, 1, 100) + 0.01 * np.array([[1.0], [-1.0]])
            found = findings(each._replace(probes=[probe(values=value + spread)]))
            assert ("values_are_far_from_returns" in [one.rule for one in found]) == expected


def test_a_watch_tells_every_rule_once():
    watch = Watch()
    watch.facts = Facts(episode_length=200)
    told = []
    for i in range(6):
        values = {"train/length": np.array([1.0 + 0.1 * i]), "other": np.zeros(1)}
        watch.add(100 * i, values, progress=i / 5)
        told += watch.evaluated(np.array([[float(i), 0.0]]))
    assert [each.rule for each in told] == ["episodes_end_at_once"] and "other" not in watch.facts.curves
    assert math.isclose(watch.facts.curves["train/length"].values[-1, 0], 1.5)
    assert [each.rule for each in watch.new(Facts(evaluations=[np.array([[1.0, 2.0]])] * SAME))] == ["never_changes"]


def test_a_watch_stays_small_and_leaves_populations_alone():
    watch = Watch()
    for i in range(5 * MOST_POINTS):
        watch.add(i, {"eval/return": np.array([float(i)])}, progress=0.1)
    watch.evaluated(np.zeros((1, 2)))
    kept = watch.facts.curves["eval/return"]
    assert len(kept.steps) <= MOST_POINTS and kept.steps[0] == 0 and kept.steps[-1] == 5 * MOST_POINTS - 1
    watch = Watch()
    watch.facts = Facts(is_population=True)
    watch.add(0, {"eval/return": np.zeros(2)}, progress=0.1)
    assert watch.evaluated(np.zeros((1, 2))) == [] and not watch.facts.curves


def test_a_finding_is_one_sentence():
    assert str(Finding("x", MINOR, "a is 1", "set `b`")) == "a is 1: set `b`."
    assert str(Finding("x", MINOR, "a: 1", "set `b`")) == "a: 1; set `b`."
    assert Finding("x", MINOR, "a is 1", "set `b`").as_json()["severity"] == "minor"


def test_the_page_lists_every_rule_in_order():
    page = (Path(__file__).parents[2] / "docs" / "doctor.md").read_text()
    listed = re.findall(r"^\| `(\w+)`(?: \(live\))? \| [^|]+\| [^|]+\| (?:severe|serious|minor)", page, re.MULTILINE)
    assert listed == [rule.__name__ for rule in RULES]
