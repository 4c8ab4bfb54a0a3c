"""The model card of a policy: a README in the layout that the Hugging Face Hub reads."""

import json
from typing import Any, NamedTuple

from covey.export.names import observation_parts

PARTS = "| {name} | {shape} | {dtype} | {meaning} |"


class Card(NamedTuple):
    """The content of a model card.

    Args:
        about: The contract of the exported policy.
        mean: Mean return.
        low: Lower end of its 95 % interval.
        high: Upper end.
        deviation: Standard deviation of the returns of episodes.
        episodes: Episodes that were played.
        steps: Environment steps that the run was trained for.
        command: The command that trained it.
        versions: Versions of the software, as lines.
        files: Names of the files beside the card.
    """

    about: dict[str, Any]
    mean: float
    low: float
    high: float
    deviation: float
    episodes: int
    steps: int
    command: str
    versions: str
    files: tuple[str, ...]


def write_card(card: Card) -> str:
    """Returns the text of a model card."""
    about = card.about
    title = f"{about['algorithm']} on {about['environment']}"
    pictures = [f"![{name.split('.')[0]}]({name})" for name in card.files if name.endswith((".gif", ".png"))]
    policies = [name for name in card.files if name.endswith((".onnx", ".npz", ".h", ".jax"))]
    first = policies[0] if policies else "policy.onnx"
    return "\n".join(
        [
            *_metadata(card),
            f"# {title}",
            "",
            f"A policy trained with covey {about['covey']} for {card.steps:,} environment steps.",
            "",
            f"Return **{card.mean:.1f}** [{card.low:.1f}, {card.high:.1f}] (mean and its 95 % interval over "
            f"{card.episodes} greedy episodes on start states that training never used).",
            "",
            *pictures,
            "",
            "## Use it",
            "",
            "```python",
            "import covey",
            "",
            f'policy = covey.load_policy("{first}")  # needs no JAX',
            "policy.reset()  # at the start of each episode",
            "action = policy(observation)  # in the environment's own units",
            "```",
            "",
            "## Inputs and outputs",
            "",
            "Every array has a leading axis for the batch. The normaliser is inside.",
            "",
            *_arrays(about),
            "",
            "## How it was trained",
            "",
            "```",
            card.command,
            "```",
            "",
            "```",
            card.versions.strip(),
            "```",
            "",
            f"Checkpoint (SHA-256 of its arrays): `{about['checkpoint']}`",
            "",
        ]
    )


def _metadata(card: Card) -> list[str]:
    """Returns the YAML at the top, which the Hub reads. JSON strings are YAML."""
    name, env = json.dumps(card.about["algorithm"]), json.dumps(card.about["environment"])
    value = json.dumps(f"{card.mean:.2f} +/- {card.deviation:.2f}")
    return [
        "---",
        "library_name: covey",
        f"tags: [deep-reinforcement-learning, reinforcement-learning, covey, {env}]",
        "model-index:",
        f"- name: {name}",
        "  results:",
        "  - task: {type: reinforcement-learning, name: reinforcement-learning}",
        f"    dataset: {{name: {env}, type: {env}}}",
        f"    metrics: [{{type: mean_reward, value: {value}, name: mean_reward, verified: false}}]",
        "---",
        "",
    ]


def _arrays(about: dict[str, Any]) -> list[str]:
    """Returns the table of inputs and outputs."""
    rows = ["| name | shape | type | meaning |", "|---|---|---|---|"]
    action = about["action"]
    limits = f"output; from {action['low']} to {action['high']}"
    parts = [
        *(each | {"meaning": "input"} for each in observation_parts(about)),
        *(each | {"meaning": "input and, as NAME_out, output; see its `start`"} for each in about["memory"]),
        *(each | {"dtype": "float32", "meaning": f"input; {each['kind']} noise"} for each in about["noise"]),
        action | {"meaning": limits},
    ]
    return rows + [PARTS.format(**each) for each in parts]
