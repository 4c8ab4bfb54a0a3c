"""The table of metrics in docs/metrics.md has exactly the metrics that every agent logs."""

import re
from pathlib import Path

import pytest

from covey import agents
from covey.agents import REGISTRY
from covey.envs.builtin.point import Point
from covey.envs.described import Described
from covey.run.config_text import from_json
from covey.training.trainer import make_trainer
from tests.runs import tiny

PAGE = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()
ROWS = [[cell.strip() for cell in line.strip("|").split("|")] for line in PAGE.splitlines() if line.startswith("| `")]
LEARNING = {"diagnostics": True, "critics": {"bins": 21}, "smoothness": {"temporal": 1.0}}
OPTIONS = {
    "td3": LEARNING,
    "sac": LEARNING,
    "taac": {"diagnostics": True},
    "diayn": {"sac": LEARNING},
    "dads": {"sac": LEARNING, "correction": 10.0},
    "metra": {"sac": LEARNING},
}
"""Options with which an agent logs everything it can."""


def documented(agent: str, prefix: str, options: bool) -> set[str]:
    """Names of the table for an agent; with or without those that need an option."""
    found: set[str] = set()
    for names, whose, *rest in ROWS:
        mine = agent in whose.split(", ") or whose == "all"
        option = len(rest) == 2 and bool(rest[0])
        if mine and (options or not option):
            found |= {name for name in re.findall(r"`([^`]+)`", names) if name.startswith(prefix)}
    return found


def logged(agent: str, options: dict) -> set[str]:
    entry = agents.entry(agent)
    env = Described(Point()) if entry.is_skill_agent else Point()
    made = entry.make(from_json(entry.config, options, "agent"), env.spec)
    names = {name.partition("[")[0] for name in make_trainer(made, env, entry.hyper()).metrics}
    return {"agent/" + re.sub(r"^critic_\d+_", "critic_J_", name) for name in names}


@pytest.mark.parametrize("agent", sorted(REGISTRY))
def test_every_metric_of_an_agent_is_in_the_table_and_no_other(agent: str):
    family = agent.partition("-")[0]
    assert logged(agent, {}) == documented(family, "agent/", options=False)
    assert logged(agent, OPTIONS[family]) == documented(family, "agent/", options=True)


def test_a_run_logs_what_the_tables_say(tmp_path: Path):
    found = set(tiny(tmp_path / "run").metrics())
    wanted = {name for prefix in ("eval/", "train/", "agent/") for name in documented("td3", prefix, options=False)}
    found = {re.sub("^eval/descriptor/.*", "eval/descriptor/NAME", name) for name in found}
    assert {name for name in found if not name.startswith("hyper/")} == wanted
