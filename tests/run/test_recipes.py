"""Recipes: valid, stronger than a preset, weaker than an option, and on the page that describes them."""

import re
from pathlib import Path
from typing import Any

import jax
import pytest

import covey
from covey import agents
from covey.agents.recipes import RECIPES, Recipe, find_recipe, recipes_of
from covey.cli import main
from covey.envs.described import Described
from covey.run.config import RunConfig, default_config
from covey.run.config_text import flat
from covey.run.presets import PRESETS, Basis, preset_config, recipe_options
from tests.runs import FLAGS, TINY

PAGE = Path(__file__).parents[2] / "docs" / "recipes.md"
TAKEN = [(agent, name) for agent in agents.REGISTRY for name in recipes_of(agent)]
RECIPE = {
    "updates_per_step": 2.0,
    "agent": {"batch_size": 32, "networks": {"critic": {"hidden": [9, 9], "norm": "layer"}}},
    "hyper": {"actor_lr": "linear:0.002:0.001", "critic_lr": 0.002},
}
PRESET = {"steps": 900, "agent": {"batch_size": 16, "networks": {"actor": {"hidden": [7]}}}, "hyper": {"actor_lr": 0.5}}


@pytest.fixture
def toy(monkeypatch):
    monkeypatch.setitem(RECIPES, ("sac", "toy"), Recipe("a toy", "nowhere", RECIPE, "Try --agent.batch-size 8."))
    monkeypatch.setitem(PRESETS, ("sac", "point"), PRESET)


@pytest.fixture
def started(monkeypatch) -> list[tuple[RunConfig[Any, Any], Basis]]:
    """The configurations of runs that would have been started, and what they are based on."""
    found: list[tuple[RunConfig[Any, Any], Basis]] = []
    monkeypatch.setattr(
        "covey.launch.start_run", lambda config, out, reporter, basis, *_: found.append((config, basis))
    )
    monkeypatch.setattr("covey.api.start_run", lambda config, out, reporter, basis, **_: found.append((config, basis)))
    return found


def values(config: RunConfig[Any, Any], names: Any) -> dict[str, Any]:
    found = {}
    for name in names:
        value: Any = config
        for part in name.split("."):
            value = getattr(value, part)
        found[name] = list(value) if isinstance(value, tuple) else value
    return found


@pytest.mark.parametrize(("agent", "name"), TAKEN)
def test_the_configuration_is_what_the_options_say(agent: str, name: str):
    """On an environment with a preset, and without the preset."""
    options = flat(recipe_options(agent, name))
    expected = {path: str(x) if path.startswith("hyper.") else x for path, x in options.items()}
    env = "point-free" if agents.entry(agent).is_skill_agent else "pendulum"
    for preset in (True, False):
        config = Basis(preset, name).config(agent, env=env)
        assert values(config, options) == expected
        config.check()
        config.schedules()
    assert config != default_config(agent, env=env), "a recipe that changes nothing"
    assert Basis(True, name).config(agent, env=env).steps == preset_config(agent, env=env).steps


@pytest.mark.parametrize(("agent", "name"), TAKEN)
def test_every_recipe_makes_an_agent(agent: str, name: str):
    """Shapes only, so that nothing is compiled."""
    entry = agents.entry(agent)
    env = covey.envs.make("point-free")
    config = Basis(False, name).config(agent)
    made = entry.make(config.agent, Described(env).spec if entry.is_skill_agent else env.spec)
    state = jax.eval_shape(lambda key: made.init(entry.hyper(), key), jax.random.key(0))
    widths = [x.shape[-1] for x in jax.tree.leaves(getattr(state, "sac", state).critic.online)]
    inner = getattr(config.agent, "sac", config.agent)
    assert set(inner.networks.critic.hidden) <= set(widths)
    assert made.plan.updates == inner.policy_delay


@pytest.mark.parametrize(("agent", "name"), RECIPES)
def test_a_recipe_is_documented(agent: str, name: str):
    recipe = RECIPES[agent, name]
    assert recipe.summary[0].islower() and not recipe.summary.endswith(".") and "arXiv" in recipe.source
    assert recipe.options.keys() <= {"updates_per_step", "agent", "hyper"}, "the rest belongs to the environment"


def test_the_page_lists_the_recipes():
    """The table of docs/recipes.md is the registry: | agent | name | summary | source |."""
    rows = re.findall(r"^\| (\w+) \| `([\w-]+)` \| (.*?) \| (.*?) \|$", PAGE.read_text(), re.MULTILINE)
    expected = [(agent, name, recipe.summary, recipe.source) for (agent, name), recipe in RECIPES.items()]
    assert rows == expected, "\n".join(f"| {a} | `{n}` | {s} | {w} |" for a, n, s, w in expected)


def test_precedence(toy):
    """Plain defaults < preset < recipe < options of the user, value by value."""
    config = Basis(True, "toy").config("sac", env="point", hyper={"critic_lr": 0.01})
    assert config.steps == 900 and config.agent.networks.actor.hidden == (7,), "of the preset alone"
    assert config.agent.batch_size == 32 and config.hyper.actor_lr == "linear:0.002:0.001", "the recipe's wins"
    assert config.hyper.critic_lr == "0.01" and config.updates_per_step == 2, "the user's wins"
    assert config.hyper.temperature_lr == "0.0003" and config.warmup == default_config("sac").warmup, "plain"
    plain = Basis(False, "toy").config("sac", env="point")
    assert plain.steps == default_config("sac").steps and plain.agent.networks.actor.hidden == (256, 256)
    assert plain.agent.batch_size == 32
    assert config.resolved().hyper.actor_lr == "linear:0.002:0.001:900", "over the run, as any schedule"
    assert Basis(True, "").config("sac", env="point") == preset_config("sac", env="point")


def test_shorthands_win_over_a_recipe_and_may_be_in_one(toy, monkeypatch):
    config = Basis(True, "toy").config("sac", env="point", lr=0.1, hidden=[5])
    assert config.agent.networks.critic.hidden == config.agent.networks.actor.hidden == (5,)
    assert config.hyper.actor_lr == config.hyper.critic_lr == "0.1" and config.agent.networks.critic.norm == "layer"
    monkeypatch.setitem(RECIPES, ("sac", "short"), Recipe("", "", {"lr": 0.2, "hidden": [3]}))
    config = Basis(True, "short").config(
        "dads", env="pendulum", agent={"sac": {"networks": {"actor": {"hidden": [4]}}}}
    )
    assert config.hyper.sac.actor_lr == "0.2" and config.hyper.dynamics_lr == default_config("dads").hyper.dynamics_lr
    assert config.agent.sac.networks.critic.hidden == (3,) and config.agent.sac.networks.actor.hidden == (4,)
    assert config.agent.dynamics.hidden == (256, 256), "not a network of the SAC"


@pytest.mark.parametrize("agent", ["diayn", "dads"])
def test_the_recipes_of_an_inner_sac(agent: str, toy):
    config = Basis(True, "toy").config(agent, env="point-free")
    preset = preset_config(agent, env="point-free")
    assert config.updates_per_step == 2 and config.agent.sac.batch_size == 32
    assert config.agent.sac.networks.critic.norm == "layer" and config.hyper.sac.critic_lr == "0.002"
    assert config.steps == preset.steps and config.agent.skills == preset.agent.skills
    assert config.hyper.sac.target_entropy == preset.hyper.sac.target_entropy, "the rest of the preset's SAC"
    assert find_recipe(agent, "toy").notes == "Try --agent.sac.batch-size 8."
    assert find_recipe("sac", "TOY").notes == "Try --agent.batch-size 8."


def test_a_recipe_of_the_outer_agent_wins(toy, monkeypatch):
    monkeypatch.setitem(RECIPES, ("diayn", "toy"), Recipe("", "", {"agent": {"sac": {"batch_size": 4}}}))
    assert Basis(True, "toy").config("diayn", env="point-free").agent.sac.batch_size == 4
    assert Basis(True, "toy").config("dads", env="point-free").agent.sac.batch_size == 32


def test_command_line_and_python_agree(toy, started):
    line = [
        "--env",
        "point",
        "--recipe",
        "toy",
        "--hidden",
        "5",
        "--hyper.critic-lr",
        "0.01",
        "--updates-per-step",
        "3",
    ]
    assert main(["train", "sac", *line]) == 0
    options: dict[str, Any] = {"env": "point", "recipe": "toy", "hidden": 5, "hyper": {"critic_lr": 0.01}}
    covey.train("sac", **options, updates_per_step=3)
    assert started[0] == started[1] and started[0][1] == Basis(True, "toy")
    assert started[0][0].agent.networks.critic.hidden == (5,) and started[0][0].updates_per_step == 3
    assert main(["evolve", "sac", *line, "--preset", "off", "--members", "4"]) == 0
    covey.evolve("sac", **options, members=4, updates_per_step=3, preset=False)
    assert started[2] == started[3] and started[2][0].steps == 20_000
    assert "critic_lr" in started[2][0].searched() and "actor_lr" not in started[2][0].searched(), "a schedule"


def test_help_says_where_a_value_comes_from(toy, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    assert main(["train", "sac", "--env", "point", "--recipe", "toy", "--lr", "0.1", "--help-all"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "Transitions per critic update. (default: 32, from the recipe)" in text
    assert "Environment steps of each member. (default: 900, from the preset)" in text
    assert "(default: 0.1)" in text and "(default: 7, from the preset)" in text
    assert "`covey recipes` lists them. Of sac: crossq, droq, redq, simba, flash, xqc, toy." in text
    assert main(["train", "td3", "--help"]) == 0
    assert "Of td3" not in capsys.readouterr().out


def test_a_run_says_its_recipe_and_needs_it_no_more(monkeypatch, tmp_path: Path, capsys):
    """config.json holds the options, so the same options written out are the same run."""
    tiny = Recipe("a toy", "nowhere", {"agent": TINY["agent"], "hyper": {"tau": 0.03}})
    monkeypatch.setitem(RECIPES, ("td3", "tiny"), tiny)
    first = ["train", "td3", "--out", str(tmp_path / "run")]
    assert main([*first, *FLAGS[: FLAGS.index("--agent.batch-size")], "--recipe", "tiny"]) == 0
    said = capsys.readouterr().out
    assert "  recipe tiny: a toy (nowhere)\n" in said
    assert "  options, also of the preset (--preset off ignores it) and the recipe: networks.actor.hidden 16" in said
    assert "tau 0.03" in said and "recipe" not in (tmp_path / "run" / "config.json").read_text()
    assert main([*first, *FLAGS, "--hyper.tau", "0.03"]) == 0
    assert "is finished: it has made its 1,200 steps" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "code", "says"),
    [
        (
            ["sac", "--recipe", "tai"],
            1,
            "There is no recipe for sac called 'tai'. There are: crossq, droq, flash, redq, simba, toy, xqc.",
        ),
        (["sac", "--recipe", "cross"], 1, "Did you mean 'crossq'"),
        (["td3", "--recipe", "toy"], 1, "There is no recipe for td3. There are for: sac, diayn, dads, metra."),
        (["sac", "--recipe", "toy", "--config", "x.json"], 2, "--recipe and --config exclude each other"),
        (["sac", "--recipe"], 2, "--recipe needs a value: --recipe RECIPE"),
        (
            ["sac", "--recipe", "toy", "--env", "point", "--warmup", "900"],
            1,
            "(--steps 900 comes from the preset for sac on point.)",
        ),
        (
            ["sac", "--recipe", "long", "--env", "point", "--steps", "10"],
            1,
            "(--warmup 950 comes from the recipe long.)",
        ),
        (
            ["sac", "--recipe", "long", "--env", "point"],
            1,
            "(--steps 900 comes from the preset for sac on point, and --warmup 950 comes from the recipe long.)",
        ),
    ],
)
def test_errors_on_the_command_line(line: list[str], code: int, says: str, toy, monkeypatch, capsys):
    if "long" in line:
        monkeypatch.setitem(RECIPES, ("sac", "long"), Recipe("", "", {"warmup": 950}))
    assert main(["train", *line]) == code
    assert says in capsys.readouterr().err


def test_errors_in_python(toy):
    with pytest.raises(covey.CoveyError, match="`recipe` must be the name of a recipe, not 3"):
        covey.train("sac", recipe=3)  # type: ignore[arg-type]
    with pytest.raises(covey.CoveyError, match="`recipe` and a whole SACConfig as `agent` exclude each other"):
        covey.train("sac", recipe="toy", agent=covey.SACConfig())
    with pytest.raises(covey.CoveyError, match="`recipe` and a whole SACHyper as `hyper` exclude each other"):
        covey.evolve("sac", recipe="toy", hyper=covey.SACHyper())


def test_registering(started):
    options = {"agent": {"critics": {"number": 5, "combine": "mean"}}, "lr": 1e-3}
    try:
        covey.register_recipe("SAC", "five", options, "five critics, whose mean is the target")
        covey.train("sac", env="pendulum", recipe="five")
        assert started[0][0].agent.critics.number == 5 and started[0][0].hyper.critic_lr == "0.001"
        with pytest.raises(covey.CoveyError, match="already a recipe of sac called 'five'"):
            covey.register_recipe("sac", "five", {}, "")
    finally:
        RECIPES.pop(("sac", "five"), None)


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("Five!", {}, "can't be a recipe's name"),
        ("five", {"env": "point", "seeds": 3}, "A recipe can't set `env`, `seeds`"),
        ("five", {"agent": {"batchsize": 3}}, "batch_size"),
        ("five", {"hyper": {"learning_rate": 3}}, "There is no option `hyper.learning_rate`"),
    ],
)
def test_a_wrong_recipe_is_refused_at_once(name: str, options: dict[str, Any], says: str):
    with pytest.raises(covey.CoveyError, match=says):
        covey.register_recipe("sac", name, options, "")
    assert ("sac", name) not in RECIPES
