"""Errors name fields below the command line, and flags with their full path on it."""

import pytest

import covey
from covey.cli import main


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["train", "sac", "--agent.batch-size", "0"], "--agent.batch-size must be at least 1"),
        (["train", "diayn", "--env", "point-free", "--agent.sac.batch-size", "0"], "--agent.sac.batch-size must be"),
        (
            ["train", "dads", "--env", "point-free", "--agent.sac.critics.number", "0"],
            "--agent.sac.critics.number",
        ),
        (["train", "td3", "--agent.networks.critic.hidden", "-4"], "--agent.networks.critic.hidden"),
        (["train", "td3", "--seeds", "0"], "--seeds must be positive"),
        (["evolve", "td3", "--members", "0"], "--members must be"),
        (["evolve", "td3", "--pbt.bottom", "2"], "--pbt.bottom must lie in"),
        (["evolve", "td3", "--space.actor-lr", "1:0"], "--space.actor-lr"),
        (["train", "td3", "--hyper.tau", "7"], "--hyper.tau must lie between"),
    ],
)
def test_the_command_line_names_the_whole_flag(arguments: list[str], says: str, tmp_path, capsys):
    assert main([*arguments, "--out", str(tmp_path / "run")]) == 1
    assert says in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "run").exists()


def test_python_names_the_field(tmp_path):
    with pytest.raises(covey.CoveyError, match=r"`agent\.sac\.batch_size` must be at least 1"):
        covey.train("diayn", env="point-free", agent={"sac": {"batch_size": 0}}, out=tmp_path / "run", quiet=True)
    with pytest.raises(covey.CoveyError, match="`batch_size` must be at least 1"):
        covey.SACConfig(batch_size=0)
    with pytest.raises(covey.CoveyError, match="`steps` must be positive"):
        covey.train("td3", env="point", steps=0, out=tmp_path / "run", quiet=True)
