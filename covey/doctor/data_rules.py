"""Rules about what a run is given: environment, data, options. They come first, because they explain the others."""

import math

import numpy as np

from covey.doctor.facts import MINOR, SERIOUS, SEVERE, Curve, Facts, Finding
from covey.hyper.names import field_of
from covey.hyper.range import Range

FAR = 30.0
"""A value is far outside of a logarithmic range from this factor on."""
SPARSE = 2e-3
"""Rewards are sparse if fewer than this share of them differ from 0."""
LARGE_REWARD, SMALL_REWARD = 100.0, 1e-3
"""Limits of the root mean square of scaled rewards."""
LARGE_OBS, HUGE_OBS = 50.0, 1e4
"""Observations are large, and learning is hopeless, from these root mean squares on, if they are not normalised."""
UNEQUAL = 100.0
"""Their scales are unequal if the deviations of two coordinates differ by more than this factor."""
SHORT_EPISODE = 3.0
"""Episodes of fewer steps end at once."""
WARMUP_SHARE = 0.25
"""The warm-up should collect at least this share of a batch."""
BLOCK = 100
"""Most steps of a block. A warm-up is rounded up to whole blocks."""
INCOMING = ("observation", "reward")


def environment_not_finite(facts: Facts) -> Finding | None:
    """An observation or reward that was NaN or infinite."""
    fault = facts.fault
    if fault is None or fault.quantity not in INCOMING:
        return None
    return Finding(
        "environment_not_finite",
        SEVERE,
        f"the environment gave member {fault.member} a NaN or infinite {fault.quantity} at step {fault.step:,}, which "
        "ended the training",
        f"repair it: `covey check-env {facts.options.get('env', 'ENV')}` looks for it",
    )


def rewards_are_constant(facts: Facts) -> Finding | None:
    """Nothing but zeros in the replay, or one reward for everything."""
    if facts.data is None or facts.is_skill_agent or not len(facts.data.reward):
        return None
    reward, count = facts.data.reward, len(facts.data.reward)
    if np.ptp(reward) > 0 or (reward[0] != 0 and facts.data.terminated.any()):  # a reward for each step of survival
        return None
    return Finding(
        "rewards_are_constant",
        SEVERE,
        f"all {count:,} rewards in the replay are {reward[0] + 0.0:g}, so no action is better than another",
        "correct the environment's reward, or explore further with `warmup` or `agent.noise_hold` if it is sparse",
    )


def rewards_are_sparse(facts: Facts) -> Finding | None:
    """Hardly any reward in the replay differs from 0."""
    if facts.data is None or facts.is_skill_agent or not len(facts.data.reward):
        return None
    share = float(np.mean(facts.data.reward != 0))
    if share == 0 or share > SPARSE:
        return None
    return Finding(
        "rewards_are_sparse",
        SERIOUS,
        f"only {share:.2%} of the {len(facts.data.reward):,} rewards in the replay differ from 0".replace("%", " %"),
        "collect more before learning with `warmup`, explore further with `agent.noise_hold`, or raise `agent.n_step`",
    )


def reward_scale(facts: Facts) -> Finding | None:
    """Rewards that are too large or too small for networks and temperatures."""
    size = scaled_reward(facts)
    if size is None or size == 0 or SMALL_REWARD <= size <= LARGE_REWARD or facts.option("normalise.rewards"):
        return None
    word = "large" if size > LARGE_REWARD else "small"
    scale = facts.current("reward_scale", 1.0)
    return Finding(
        "reward_scale",
        SEVERE if size > LARGE_REWARD else SERIOUS,
        f"rewards are too {word} for the networks: their root mean square, scaled, is {size:.3g}",
        f"set `hyper.reward_scale` to about {_round(scale / size):g}, or switch on `agent.normalise.rewards`",
    )


def scaled_reward(facts: Facts) -> float | None:
    """Returns the root mean square of the scaled rewards in the replay; None if the agent does not learn from them."""
    if facts.data is None or facts.is_skill_agent or not len(facts.data.reward):
        return None
    return float(np.sqrt(np.mean(facts.data.reward.astype(np.float64) ** 2))) * facts.current("reward_scale", 1.0)


def _round(value: float) -> float:
    """Returns the power of ten next to a value."""
    return 10.0 ** round(math.log10(value))


def observations_are_constant(facts: Facts) -> Finding | None:
    """Coordinates of the observation that never change."""
    if facts.data is None or len(facts.data.obs) < 2:
        return None
    constant = np.flatnonzero(np.ptp(facts.data.obs, axis=0) == 0)
    if not len(constant):
        return None
    size = facts.data.obs.shape[1]
    everything = len(constant) == size
    which = "the whole observation is" if everything else f"{len(constant)} of {size} coordinates of observations are"
    return Finding(
        "observations_are_constant",
        SEVERE if everything else MINOR,
        f"{which} constant over {len(facts.data.obs):,} steps (coordinate {_listed(constant)})",
        "check what the environment observes (`env_kwargs`, `wrappers`): such a coordinate tells the policy nothing",
    )


def observation_scale(facts: Facts) -> Finding | None:
    """Observations that are large, or whose coordinates have very different scales, and are not normalised."""
    if facts.data is None or facts.option("normalise.observations") or len(facts.data.obs) < 2:
        return None
    if not facts.data.obs.size:  # images alone, which their encoder scales
        return None
    obs = facts.data.obs.astype(np.float64)
    sizes = np.sqrt(np.mean(obs**2, axis=0))
    deviation = np.std(obs, axis=0)
    varying = deviation[deviation > 0]
    remedy = "switch on `agent.normalise.observations`"
    at = int(np.argmax(sizes))
    if sizes[at] > LARGE_OBS:
        evidence = f"observations are large: coordinate {at} has a root mean square of {sizes[at]:.3g}"
        return Finding("observation_scale", SEVERE if sizes[at] > HUGE_OBS else SERIOUS, evidence, remedy)
    if len(varying) and varying.max() > UNEQUAL * varying.min():
        evidence = f"the deviations of observed coordinates range from {varying.min():.2g} to {varying.max():.2g}"
        return Finding("observation_scale", SERIOUS, evidence, remedy)
    return None


def episodes_end_at_once(facts: Facts) -> Finding | None:
    """Episodes that last a step or two."""
    curve = facts.curves.get("train/length")
    if curve is None or not len(curve.values) or facts.episode_length < 10:
        return None
    length = float(np.nanmax(curve.values[-1]))
    if not length < SHORT_EPISODE:
        return None
    return Finding(
        "episodes_end_at_once",
        SEVERE,
        f"training episodes last {length:.3g} steps on average, of at most {facts.episode_length:,}",
        "check when the environment terminates (`env_kwargs`, `wrappers`): there is nothing to learn from one step",
    )


def episodes_never_end(facts: Facts) -> Finding | None:
    """No training episode has ended."""
    curve = facts.curves.get("train/episodes", Curve(np.zeros(0), np.zeros((0, 1))))
    if not len(curve.values) or facts.progress < 1 or np.nansum(curve.values) > 0:
        return None
    each = int(curve.steps[-1]) // facts.options.get("envs", 1)
    return Finding(
        "episodes_never_end",
        SERIOUS,
        f"no training episode has ended in {each:,} steps of each environment; the time limit is "
        f"{facts.episode_length:,}",
        "train longer (`steps`) or set a shorter time limit with `episode_length`, so that start states are seen more "
        "than once",
    )


def warmup_is_short(facts: Facts) -> Finding | None:
    """Fewer transitions than a batch before the first update."""
    batch, warmup = facts.option("batch_size", 0), facts.options.get("warmup", 0)
    collected = -(-warmup // BLOCK) * BLOCK
    if not batch or facts.options.get("replay") or collected >= WARMUP_SHARE * batch:
        return None
    return Finding(
        "warmup_is_short",
        SERIOUS,
        f"the warm-up collects {collected:,} steps, and the first batch draws {batch:,} of them",
        f"raise `warmup` to at least {max(1000, batch):,}",
    )


def far_outside(facts: Facts) -> Finding | None:
    """Hyper-parameters far outside of their search range. Zero is a choice: it switches something off."""
    found = []
    for name, values in facts.hyper.items():
        space = facts.space[field_of(name)]
        far = [value for value in values if value != 0 and _is_far(value, space)]
        if far:
            found.append((name, f"{name} {far[0]:g} (usual: {space.low:g} to {space.high:g})"))
    if not found:
        return None
    evidence = f"far outside of the usual range: {', '.join(text for _, text in found)}"
    options = ", ".join(f"`hyper.{name}`" for name, _ in found)
    return Finding("far_outside", SEVERE, evidence, f"the run may not learn; set {options} within it")


def _is_far(value: float, space: Range) -> bool:
    if space.scale == "linear":
        width = space.high - space.low
        return not space.low - width <= value <= space.high + width
    value, low, high = (
        (1 - value, 1 - space.high, 1 - space.low) if space.scale == "one_minus" else (value, space.low, space.high)
    )
    return not low / FAR <= value <= high * FAR


def _listed(numbers: np.ndarray) -> str:
    shown = ", ".join(str(number) for number in numbers[:5])
    return f"{shown}, ..." if len(numbers) > 5 else shown
