"""Bad input: one paragraph that says what to do, an exit code that is not 0, nothing lost."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

import covey
from covey import envs
from covey.cli import main
from covey.storage.folder import RunFolder
from covey.storage.metrics import read_fault
from tests.runs import FLAGS, assert_same_run, tiny
from tests.tasks import Breaks

TRAIN = ["train", "td3", "--out", "OUT"]
WIDE = [*TRAIN, *(f"--agent.networks.{name}.hidden={size}" for name, size in (("actor", 4096), ("critic", 4096)))]

TABLE = {
    "no command": (["tran"], "Did you mean 'train'"),
    "no agent named": (["train"], "Name an agent first"),
    "unknown agent": (["train", "tdd3"], "Did you mean 'td3'"),
    "unknown environment": ([*TRAIN, "--env", "pendulam"], "Did you mean 'pendulum'"),
    "an adapter that is not there": ([*TRAIN, "--env", "bracks:ant"], "Did you mean 'brax'"),
    "an unknown robot": ([*TRAIN, "--env", "brax:antt"], "Did you mean 'ant'"),
    "an unknown backend": ([*TRAIN, "--env", "brax:ant@sprin"], "Did you mean 'spring'"),
    "unknown option": ([*TRAIN, "--stepz", "9"], "--steps"),
    "not a number": ([*TRAIN, "--steps", "many"], "--steps"),
    "a fraction of nothing": ([*TRAIN, "--updates-per-step", "8/0"], "must be a number or a fraction, such as 0.25 or"),
    "no fraction": ([*TRAIN, "--updates-per-step", "8/x"], "--updates-per-step must be a number or a fraction"),
    "no whole number of updates": ([*TRAIN, "--updates-per-step", "0.3333"], "Close to it is 1/3"),
    "no steps": ([*TRAIN, "--steps", "0"], "--steps must be positive"),
    "negative environments": ([*TRAIN, "--envs", "-2"], "--envs must be positive"),
    "no seeds": ([*TRAIN, "--seeds", "0"], "--seeds must be positive"),
    "no batch": ([*TRAIN, "--agent.batch-size", "0"], "--agent.batch-size must be at least 1"),
    "negative units": ([*TRAIN, "--agent.networks.actor.hidden", "-4"], "hidden sizes must be positive"),
    "no critics": ([*TRAIN, "--agent.critics.number", "0"], "--agent.critics.number must be at least 1"),
    "a subset of too few": ([*TRAIN, "--agent.critics.subset", "3"], "3 can't be drawn from 2 critics"),
    "dropout in the actor": (
        [*TRAIN, "--agent.networks.actor.dropout", "0.1"],
        "Dropout is for the torso of the critics only",
    ),
    "limits the wrong way": ([*TRAIN, "--agent.critics.high", "-20"], "must be less than"),
    "limits of nothing": ([*TRAIN, "--agent.critics.high", "20"], "give them --agent.critics.bins"),
    "no limit": ([*TRAIN, "--agent.critics.bins", "51", "--agent.critics.low", "-inf"], "both finite"),
    "no temperature": (
        ["train", "sac", "--out", "OUT", "--hyper.temperature", "0"],
        "--hyper.temperature must lie between 1e-06",
    ),
    "one bin": ([*TRAIN, "--agent.critics.bins", "1"], "must be 0 or at least 2"),
    "negative decay": ([*TRAIN, "--agent.optimisers.critic.weight-decay", "inf"], "must be finite and not negative"),
    "decay without AdamW": (
        [*TRAIN, "--agent.optimisers.critic.weight-decay", "0.1"],
        "needs another --agent.optimisers.critic.kind: adamw",
    ),
    "unknown optimiser": ([*TRAIN, "--agent.optimisers.actor.kind", "adamm"], "Did you mean 'adam'"),
    "unknown target": (["train", "taac", "--agent.target", "tdl", "--out", "OUT"], "There are: alf, expected, sampled"),
    "two ways to move targets": (
        [*TRAIN, "--agent.target-every-step", "--agent.target-update-period", "2"],
        "--agent.target-update-period 2 and --agent.target-every-step exclude each other",
    ),
    "no distribution": (
        ["train", "sac", "--out", "OUT", "--agent.networks.actor-head", "tanh"],
        "SAC needs one, as tanh_normal does",
    ),
    "no action": ([*TRAIN, "--agent.networks.actor-head", "tanh_normal"], "TD3 needs one, as tanh does"),
    "steps within the warm-up": ([*TRAIN, "--steps", "500", "--preset", "off"], "Raise --steps above 1000"),
    "capacity below a window": (
        [*TRAIN, "--capacity", "4", "--agent.n-step", "8"],
        "Raise --capacity to at least 9",
    ),
    "warm-up below a window": ([*TRAIN, "--warmup", "1", "--agent.n-step", "150"], "Raise --warmup to at least 151"),
    "more replay than memory": ([*TRAIN, "--capacity", "1e12"], "Lower --capacity"),
    "a batch of everything": ([*TRAIN, "--agent.batch-size", "2147483648"], "--agent.batch-size must be at most"),
    "a batch that no memory holds": ([*WIDE, "--agent.batch-size", "16000000"], "Lower --agent.batch-size"),
    "weights that no memory holds": (
        [*TRAIN, "--agent.networks.critic.hidden", *["65536"] * 9],
        "Use smaller or fewer networks",
    ),
    "units beyond reason": ([*TRAIN, "--agent.networks.actor.hidden", "1000000"], "hidden must be at most 65,536"),
    "layers beyond reason": ([*TRAIN, "--agent.networks.actor.hidden", *["4"] * 101], "has 101 entries"),
    "critics beyond reason": ([*TRAIN, "--agent.critics.number", "1000000"], "critics.number must be at most 10,000"),
    "a delay beyond reason": ([*TRAIN, "--agent.policy-delay", "1000000"], "policy-delay must be at most 100"),
    "a window beyond reason": ([*TRAIN, "--agent.n-step", "1000000000"], "n-step must be at most 10,000"),
    "evaluations beyond reason": ([*TRAIN, "--evaluations", "1000000000"], "--evaluations must be at most 100,000"),
    "episodes beyond reason": ([*TRAIN, "--episodes", "2147483648"], "--episodes must be at most 1,000,000"),
    "updates beyond reason": ([*TRAIN, "--updates-per-step", "1e9"], "--updates-per-step must be at most 10,000"),
    "updates for ever": ([*TRAIN, "--updates-per-step", "inf"], "--updates-per-step must be at most 10,000"),
    "updates that are no number": ([*TRAIN, "--updates-per-step", "nan"], "--updates-per-step must be at most"),
    "environments beyond reason": ([*TRAIN, "--envs", "10000000"], "--envs must be at most 1,000,000"),
    "members beyond reason": (["evolve", "td3", "--members", "1000000", "--out", "OUT"], "--members must be at most"),
    "seeds of many digits": ([*TRAIN, "--seeds", "9" * 400], "--seeds must be at most 100,000"),
    "workers beyond reason": ([*TRAIN, "--workers", "100000"], "--workers must be at most 1,024"),
    "devices beyond reason": ([*TRAIN, "--devices", "1000000000"], "--devices must be at most 1,024"),
    "a capacity of many digits": ([*TRAIN, "--capacity", "1e300"], "--capacity must be at most"),
    "no checkpoint for ever": ([*TRAIN, "--checkpoint-minutes", "inf"], "--checkpoint-minutes must be at most"),
    "minutes that are no number": ([*TRAIN, "--checkpoint-minutes", "nan"], "--checkpoint-minutes must be at most"),
    "a reward beyond reason": ([*TRAIN, "--hyper.reward-scale", "1e18"], "must lie between 0 and 1e+06"),
    "noise beyond reason": ([*TRAIN, "--hyper.exploration-noise", "4294967296"], "must lie between 0 and 1e+06"),
    "a schedule beyond reason": ([*TRAIN, "--hyper.tau", "linear:1:0:1e300"], "less than 2147483648, not 1e+300"),
    "generations beyond reason": (
        ["evolve", "td3", "--pbt.interval", "1", "--steps", "2e9", "--capacity", "1e4", "--out", "OUT"],
        "Raise it",
    ),
    "no evaluations of a population": (["evolve", "td3", "--evaluations", "0", "--out", "OUT"], "must be positive"),
    "not a schedule": ([*TRAIN, "--hyper.tau", "linear:1"], "--hyper.tau must be"),
    "unknown schedule": ([*TRAIN, "--hyper.tau", "liner:1:2"], "Did you mean 'linear'"),
    "a discount above 1": ([*TRAIN, "--hyper.discount", "5"], "--hyper.discount must lie between 0 and 1, not 5"),
    "a rate below 0": ([*TRAIN, "--hyper.actor-lr", "linear:1:-1"], "--hyper.actor-lr must lie between 0 and 1e+06"),
    "a seed out of range": ([*TRAIN, "--seed", "5000000000"], "--seed 5000000000 is out of range"),
    "skills without a descriptor": (
        ["train", "diayn", "--out", "OUT", "--env", "gymnasium:Pendulum-v1"],
        "no state descriptor for skills to differ in. Choose coordinates of the observation, as in "
        "--agent.skills.descriptor 0 1",
    ),
    "a descriptor that is not there": (
        ["train", "dads", "--out", "OUT", "--env", "gymnasium:Pendulum-v1", "--env-descriptor", "info:x"],
        "--env-descriptor info:x: gymnasium:Pendulum-v1 has no 'x' in the info of reset and step. It has: none",
    ),
    "a descriptor of a compiled environment": (
        ["train", "dads", "--env-descriptor", "obs:0", "--out", "OUT", "--env", "point-free"],
        "--env-descriptor is for Gymnasium's environments, and point-free is compiled",
    ),
    "limits without a descriptor": (
        ["train", "sac", "--env-descriptor-low", "-1", "--out", "OUT", "--env", "gymnasium:Pendulum-v1"],
        "--env-descriptor-low and --env-descriptor-high are limits of an --env-descriptor",
    ),
    "too many steps": ([*TRAIN, "--steps", "1e10"], "--steps must be at most 2,147,483,647"),
    "unknown torso": ([*TRAIN, "--agent.networks.actor.kind", "resnet"], "There are: flash, mlp, simba, xqc"),
    "encoder shared with none": ([*TRAIN, "--agent.networks.share-encoder"], "encoder"),
    "a preset of its own": ([*TRAIN, "--preset", "fast"], "--preset must be on or off, not fast"),
    "a preset beside a config": ([*TRAIN, "--preset", "on", "--config", "FILE"], "exclude each other"),
    "presets of two": (["presets", "td3", "sac"], "takes one agent"),
    "presets of nothing": (["presets", "td4"], "Did you mean 'td3'"),
    "no such config": ([*TRAIN, "--config", "nowhere.json"], "nowhere.json"),
    "no such plugin": (["--plugin", "no_such_module", "envs"], "no_such_module"),
    "no such run": (["resume", "nowhere"], "no run folder nowhere"),
    "eval of no run": (["eval", "nowhere"], "no run folder nowhere"),
    "plot of no run": (["plot", "nowhere"], "There is no run folder nowhere."),
    "a folder below a file": (["train", "td3", "--out", "FILE/run"], "Can't write to"),
    "a folder with something else in it": (["train", "td3", "--out", "."], "not an empty folder"),
}


USAGE = [
    [],
    ["tran"],
    ["train"],
    ["train", "tdd3"],
    ["train", "td3", "--stepz", "9"],
    ["train", "td3", "--steps", "many"],
    ["train", "td3", "--steps", "1.5"],
    ["train", "td3", "--steps"],
    ["train", "td3", "--lr", "fast"],
    ["train", "td3", "--hyper.tau", "fast"],
    ["train", "td3", "--updates-per-step", "many"],
    ["train", "td3", "--hidden", "wide"],
    ["train", "td3", "--seed", "1e3"],
    ["train", "td3", "--preset", "fast"],
    ["train", "td3", "--precision", "float64"],
    ["train", "td3", "pendulum"],
    ["train", "td3", "--preset", "on", "--config", "file"],
    ["evolve", "td3", "--process", "1"],
    ["resume"],
    ["eval"],
    ["eval", "one", "two"],
    ["eval", "run", "--episodes", "many"],
    ["plot"],
    ["plan", "run"],
    ["plan", "run", "--goal", "3,up"],
    ["check-env"],
    ["check-env", "point", "pendulum"],
    ["envs", "--all"],
    ["agents", "td4"],
    ["presets", "td4"],
    ["completion", "tcsh"],
]


@pytest.mark.parametrize("arguments", USAGE, ids=" ".join)
def test_a_command_line_that_is_not_understood_exits_with_2(arguments: list[str], tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    try:
        assert main(arguments) == 2
    except SystemExit as stop:  # how tyro ends
        assert stop.code == 2
    assert not any(tmp_path.iterdir())


def test_other_failures_exit_with_1_and_interrupts_with_130(tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["eval", "nowhere"]) == main(["train", "td3", "--steps", "0"]) == main(["check-env", "pendulam"]) == 1
    assert main(["train", "td3", "--config", "nowhere.json"]) == 1

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("covey.launch.start_run", interrupted)
    assert main(["train", "td3"]) == 130


def test_a_value_of_a_preset_is_named(tmp_path: Path, capsys):
    line = ["train", "sac", "--env", "gymnasium:Hopper-v5", "--steps", "5000", "--out", str(tmp_path / "run")]
    assert main(line) == 1
    said = "(--warmup 10000 comes from the preset for sac on gymnasium:Hopper-v5.)"
    assert said in capsys.readouterr().err
    assert main([*line, "--warmup", "6000"]) == 1
    assert "preset" not in capsys.readouterr().err
    with pytest.raises(covey.CoveyError, match="`warmup` 10000 comes from the preset"):
        covey.train("sac", env="gymnasium:Hopper-v5", steps=5000, out=tmp_path / "run")


@pytest.mark.parametrize("case", TABLE)
def test_wrong_input(case: str, tmp_path: Path, capsys, monkeypatch):
    arguments, message = TABLE[case]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "FILE").write_text("kept")
    try:
        code = main([str(tmp_path / "OUT") if a == "OUT" else a for a in arguments])
    except SystemExit as stop:  # how tyro ends
        code = stop.code
    captured = capsys.readouterr()
    said = captured.err + captured.out
    assert code not in (0, None)
    assert message in " ".join(said.split())
    assert "Traceback" not in said
    assert [p.name for p in tmp_path.iterdir()] == ["FILE"], "nothing is left behind"


def test_a_folder_of_another_configuration(tmp_path: Path, capsys):
    run = tiny(tmp_path / "run")
    before = {p: p.read_bytes() for p in run.path.rglob("*") if p.is_file()}
    assert main(["train", "td3", *FLAGS, "--seed", "5", "--out", str(run.path)]) == 1
    assert "another configuration: seed is 0 there and 5 here" in capsys.readouterr().err
    assert {p: p.read_bytes() for p in run.path.rglob("*") if p.is_file()} == before


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "can't be read"),
        ("[]", "names no algorithm"),
        ('{"algorithm": "tdd3"}', "Did you mean 'td3'"),
        ('{"algorithm": "td3", "stepz": 5}', "Did you mean 'steps'"),
        ('{"algorithm": "td3", "steps": "many"}', "steps must be int"),
        ('{"algorithm": "td3", "agent": {"batch_size": 1.5}}', "--agent.batch-size must be int"),
        ('{"algorithm": "td3", "agent": {"networks": {"actor": {"hidden": 5}}}}', "must be a list"),
        ('{"algorithm": "td3", "hyper": {"tua": "1"}}', "Did you mean 'tau'"),
        ('{"algorithm": "td3", "evaluations": 1000000000000}', "--evaluations must be at most 100,000"),
        ('{"algorithm": "td3", "agent": {"batch_size": 2147483648}}', "--agent.batch-size must be at most"),
        ('{"algorithm": "td3", "checkpoint_minutes": NaN}', "--checkpoint-minutes must be at most"),
    ],
)
def test_a_broken_config(text: str, message: str, tmp_path: Path, capsys):
    (tmp_path / "config.json").write_text(text)
    assert main(["resume", str(tmp_path)]) == 1
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("what", ["observation", "reward"])
def test_an_environment_that_returns_nan(what: str, tmp_path: Path):
    """Named with its step; the checkpoints from before are kept and it is never saved."""
    name = f"breaks-{what}"
    covey.register_env(name, lambda: Breaks(at=45, what=what))
    try:
        with pytest.raises(covey.CoveyError, match=rf"The {what} of member 0 was not finite .* step (88|90)\."):
            tiny(tmp_path / "run", env=name)
    finally:
        del envs.ENVS[name]
    assert not list((tmp_path / "run" / "checkpoints").iterdir())
    found = read_fault(RunFolder(tmp_path / "run"))
    assert found is not None and found[:2] == (what, 0) and found[2] in (88, 90), "for `covey doctor`"


@dataclass(frozen=True)
class WrongShape(Breaks):
    """Returns its reward as a vector."""

    def step(self, state, action, key):
        state, outcome = super().step(state, action, key)
        return state, outcome._replace(reward=outcome.reward[None])


def test_an_environment_that_breaks_its_spec(tmp_path: Path):
    covey.register_env("wrong-shape", WrongShape)
    try:
        with pytest.raises(covey.CoveyError, match=r"the reward is float32\[1\] and must be float32\[\]"):
            tiny(tmp_path / "run", env="wrong-shape")
    finally:
        del envs.ENVS["wrong-shape"]
    assert not (tmp_path / "run").exists()


def test_divergence_is_named_and_the_last_checkpoint_kept(tmp_path: Path):
    with pytest.raises(covey.CoveyError, match=r"not finite .* step [\d,]+[.:] .*checkpoint"):
        tiny(tmp_path / "run", hyper={"critic_lr": 1e6, "actor_lr": 1e6}, checkpoint_minutes=0.0)


LIMITED = """
import resource, signal, sys
from covey.cli import main
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, ({size}, {size}))
sys.exit(main(sys.argv[1:]))
"""


def test_a_full_disk(tmp_path: Path):
    """No file may grow beyond a few kilobytes: the run stops with an error, and resumes when there is room again."""
    out = tmp_path / "run"
    arguments = ["train", "td3", *FLAGS, "--checkpoint-minutes", "0", "--out", str(out)]
    code = [sys.executable, "-c", LIMITED.format(size=20_000), *arguments]
    cache = os.environ | {"COVEY_CACHE": str(tmp_path / "cache")}  # jax leaves parts of programs in it
    stopped = subprocess.run(code, capture_output=True, text=True, check=False, env=cache)
    assert stopped.returncode == 1, stopped.stderr
    assert "Traceback" not in stopped.stderr
    assert "Free some space" in stopped.stderr and "covey resume" in stopped.stderr
    assert main(["resume", str(out)]) == 0
    assert_same_run(tiny(tmp_path / "undisturbed", checkpoint_minutes=0.0).path, out)


def test_configs_from_python():
    with pytest.raises(covey.CoveyError, match="Did you mean 'steps'"):
        covey.train("td3", stepz=5)
    with pytest.raises(covey.CoveyError, match="Did you mean 'tau'"):
        covey.train("td3", hyper={"tua": 1})
    assert json.dumps(covey.__version__)
