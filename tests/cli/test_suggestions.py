"""Names that users of other libraries type: agents in any spelling, and the options of SB3, CleanRL, Brax and QDax."""

import pytest

import covey
from covey import agents
from covey.cli import main
from covey.cli.options import options_of
from covey.cli.training import JobOptions, StartOptions
from covey.run.config import default_config, load_config, option_names
from covey.run.presets import preset_config
from covey.synonyms import ADVICE, SYNONYMS, suggestion

OPTIONS = {name for agent in agents.REGISTRY for name in option_names(agent)}
OPTIONS |= {each.path for kind in (StartOptions, JobOptions) for each in options_of(kind)}
TYPICAL = [
    "learning_rate",
    "total_timesteps",
    "gamma",
    "n_envs",
    "buffer_size",
    "learning_starts",
    "gradient_steps",
    "train_freq",
    "ent_coef",
    "policy_kwargs",
    "net_arch",
    "num_timesteps",
    "n_eval_episodes",
    "eval_freq",
    "tensorboard_log",
    "verbose",
    "env_id",
    "num_envs",
    "num_evals",
    "capture_video",
    "wandb_project_name",
    "q_lr",
    "policy_lr",
    "policy_frequency",
    "noise_clip",
    "discounting",
    "grad_updates_per_step",
    "max_replay_size",
    "batch_size",
    "tau",
]


@pytest.mark.parametrize(("text", "name"), [("TD3", "td3"), ("Sac", "sac"), ("taac_l", "taac-l"), ("TAAC-Q", "taac-q")])
def test_agents_in_any_spelling(text: str, name: str):
    assert agents.canonical_name(text) == name and agents.entry(text) is agents.REGISTRY[name]
    assert default_config(text).algorithm == name
    assert preset_config(text, env="pendulum") == preset_config(name, env="pendulum")


def test_a_registered_name_with_capitals_is_found(monkeypatch):
    monkeypatch.setitem(agents.REGISTRY, "MyAgent", agents.REGISTRY["sac"])
    assert agents.canonical_name("MyAgent") == agents.canonical_name("my" + "agent") == "MyAgent"
    with pytest.raises(covey.CoveyError, match="There is no agent called 'ppo'"):
        agents.canonical_name("PPO")


def test_a_config_file_may_spell_the_agent_otherwise(tmp_path):
    (tmp_path / "config.json").write_text('{"algorithm": "TD3", "steps": 3000}')
    assert load_config(tmp_path / "config.json").algorithm == "td3"


@pytest.mark.parametrize("target", SYNONYMS)
def test_every_target_exists(target: str):
    assert target in OPTIONS


def test_no_name_is_an_option_itself():
    """Otherwise the suggestion could never be shown."""
    names = [name for text in (*SYNONYMS.values(), *ADVICE) for name in text.split()]
    assert {name for name in names if name in OPTIONS} <= {"seeds", "members"}, "train has one, evolve the other"


@pytest.mark.parametrize("name", [name for name in TYPICAL if name not in ("batch_size", "tau")])
def test_typical_names_lead_to_an_option(name: str):
    said = suggestion(name, OPTIONS)
    assert said.startswith("Did you mean `") or any(name in names.split() for names in ADVICE)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            ["train", "td3", "--learning_rate", "1e-3"],
            "no option --learning-rate. Did you mean --lr (or --hyper.actor-lr and --hyper.critic-lr)?",
        ),
        (["train", "td3", "--hyper.learning-rate=1"], "no option --hyper.learning-rate. Did you mean --lr (or"),
        (["train", "td3", "--total-timesteps", "1e6"], "Did you mean --steps?"),
        (["train", "td3", "--hyper.gamma", "0.9"], "Did you mean --hyper.discount?"),
        (["train", "dads", "--gamma", "0.9"], "Did you mean --hyper.sac.discount?"),
        (["train", "diayn", "--agent.batch-size", "9"], "Did you mean --agent.sac.batch-size?"),
        (["train", "td3", "--batch-size", "9"], "Did you mean --agent.batch-size?"),
        (["train", "sac", "--ent-coef", "0.1"], "Did you mean --hyper.temperature and --agent.fixed-temperature?"),
        (["train", "sac", "--tensorboard-log", "x"], "TensorBoard files are always written"),
        (["train", "sac", "--members", "3"], "Did you mean --seeds?"),
        (["evolve", "sac", "--seeds", "3"], "Did you mean --members?"),
        (["eval", "run", "--n-eval-episodes", "3"], "Did you mean --episodes?"),
        (["train", "sac", "--stepz", "3"], "Did you mean --steps"),
        (["train", "sac", "--xyzzy", "3"], "`covey train sac --help` lists the options."),
    ],
)
def test_the_command_line_suggests(arguments: list[str], says: str, capsys):
    assert main(arguments) == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (
            {"learning_rate": 1e-3},
            r"no option `learning_rate`\. Did you mean `lr` \(or `hyper.actor_lr` and `hyper.crit",
        ),
        ({"total_timesteps": 1}, r"no option `total_timesteps`\. Did you mean `steps`\?"),
        ({"batch_size": 1}, r"Did you mean `agent.batch_size`\?"),
        ({"hyper": {"gamma": 1}}, r"no option `hyper.gamma`\. Did you mean `hyper.discount`\?"),
        ({"agent": {"buffer_size": 1}}, r"no option `agent.buffer_size`\. Did you mean `capacity`\?"),
        ({"agent": {"networks": {"net_arch": [64]}}}, r"Did you mean `hidden`\?"),
        ({"verbose": 1}, "quiet=True prints nothing"),
        ({"stepz": 1}, "Did you mean 'steps'"),
        ({"hyper": {"tua": 1}}, "Did you mean 'tau'"),
        ({"pbt": {"botom": 0.5}}, "Did you mean 'bottom'"),
    ],
)
def test_python_suggests(options, says: str):
    with pytest.raises(covey.CoveyError, match=says):
        default_config("td3", **options)
