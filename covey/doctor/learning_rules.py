"""Rules about learning: critics, values, units, gradients, temperatures."""

import math

import numpy as np

from covey.doctor.data_rules import INCOMING, scaled_reward
from covey.doctor.facts import MINOR, SERIOUS, SEVERE, Facts, Finding

IDENTICAL = 1e-4
"""Critics are identical if they differ by less than this share of the values' deviation."""
APART = 1.0
"""Critics are far apart if they differ by more than this share of the values' deviation and size."""
DIVERGED = 10.0
"""Values diverge beyond this multiple of what the evaluated rewards could sum up to."""
DEAD = 0.7
"""Share of dead units of a last hidden layer."""
EXPLODED = 1e3
"""Largest output of a unit."""
LARGE_GRADIENT, SMALL_GRADIENT = 1e5, 1e-8
"""Limits of the norm of gradients."""
BONUS = 3.0
"""The entropy bonus of a step dominates from this multiple of the root mean square of the rewards on."""
COLLAPSED = 1e-5
"""A temperature has collapsed below this share of the root mean square of the rewards."""
UNMET = 1.0
"""Nats per dimension of the action between entropy and target."""
MOST_ENTROPY = math.log(2.0)
"""Entropy of uniform actions in [-1, 1], per dimension."""
TEMPERATURES = ("agent/temperature", "agent/action_temperature")


def loss_not_finite(facts: Facts) -> Finding | None:
    """A loss that was NaN or infinite."""
    if facts.fault is None or facts.fault.quantity in INCOMING:
        return None
    return Finding(
        "loss_not_finite",
        SEVERE,
        f"the {facts.fault.quantity} of member {facts.fault.member} was NaN or infinite at step {facts.fault.step:,}",
        "learning diverged; lower `hyper.critic_lr` and `hyper.actor_lr`, or `hyper.reward_scale`",
    )


def critics_are_identical(facts: Facts) -> Finding | None:
    """Critics that say the same, so that an ensemble of them is one critic."""
    for member, values in _values(facts):
        apart = float(np.mean(np.std(values, axis=0)))
        deviation = float(np.std(np.mean(values, axis=0)))
        if apart <= IDENTICAL * deviation or (apart == 0 and np.abs(values).max() > 0):
            evidence = f"the {len(values)} critics{member} are identical: they differ by {apart:.2g} on values whose "
            return Finding(
                "critics_are_identical",
                SERIOUS,
                f"{evidence}deviation is {deviation:.2g}",
                "start every critic from its own weights (`init_from`), or save time with `agent.critics.number` 1",
            )
    return None


def critics_are_apart(facts: Facts) -> Finding | None:
    """Critics that contradict each other."""
    for member, values in _values(facts):
        mean = np.mean(values, axis=0)
        apart = float(np.mean(np.std(values, axis=0)))
        scale = float(np.std(mean)) + 0.1 * float(np.abs(mean).mean())
        if apart > APART * scale and apart > 0.1:
            evidence = f"the {len(values)} critics{member} differ by {apart:.3g} on average, and their mean varies by "
            return Finding(
                "critics_are_apart",
                SERIOUS,
                f"{evidence}{scale:.3g} only",
                "they have not converged; train longer (`steps`), or change `hyper.critic_lr` or `hyper.tau`",
            )
    return None


def _values(facts: Facts) -> list[tuple[str, np.ndarray]]:
    """Returns the values [critics, n] of members with several critics, and which member it is."""
    several = len(facts.probes) > 1
    found = [(f" of member {i}" if several else "", each.values) for i, each in enumerate(facts.probes)]
    return [(name, x) for name, x in found if x is not None and len(x) > 1 and np.isfinite(x).all()]


def values_diverge(facts: Facts) -> Finding | None:
    """Values beyond anything that the evaluated rewards could sum up to."""
    mean = facts.late("agent/q_mean")
    needed = [facts.curves.get(f"eval/{name}") for name in ("return", "length")]
    if mean is None or facts.is_skill_agent or facts.option("normalise.rewards") or None in needed:
        return None
    returns, lengths = (each.values for each in needed)  # type: ignore[union-attr]
    reward = float(np.nanmax(np.abs(returns) / np.maximum(lengths, 1.0))) * facts.current("reward_scale", 1.0)
    bound = DIVERGED * (reward + _bonus(facts)) * _horizon(facts)
    value = float(mean[np.argmax(np.abs(mean))])
    if not np.isfinite(bound) or abs(value) <= max(bound, 1.0):
        return None
    return Finding(
        "values_diverge",
        SERIOUS,
        f"values diverge: their mean is {value:.3g}, more than {DIVERGED:g} times what the rewards of evaluations "
        f"sum up to, {bound / DIVERGED:.3g}",
        "lower `hyper.critic_lr`, `hyper.tau` or `hyper.discount`, or give the critics `agent.networks.critic.norm` "
        "layer",
    )


def values_are_far_from_returns(facts: Facts) -> Finding | None:
    """Values outside of all discounted returns in the replay."""
    if facts.data is None or facts.is_skill_agent or facts.option("normalise.rewards") or not len(facts.data.returns):
        return None
    low, high = float(facts.data.returns.min()), float(facts.data.returns.max())
    margin = (high - low) + _bonus(facts) * _horizon(facts)
    for each in facts.probes:
        if each.values is None or max(abs(low), abs(high)) == 0:
            continue
        mean = float(np.mean(each.values))
        if low - margin <= mean <= high + margin:
            continue
        word = "overestimate" if mean > high else "underestimate"
        return Finding(
            "values_are_far_from_returns",
            SERIOUS,
            f"the critics {word}: their mean value is {mean:.3g}, and the discounted returns in the replay lie between "
            f"{low:.3g} and {high:.3g}",
            "lower `hyper.critic_lr`, `hyper.tau` or `hyper.discount`, or give the critics "
            "`agent.networks.critic.norm` layer",
        )
    return None


def _horizon(facts: Facts) -> float:
    return 1.0 / max(1.0 - facts.current("discount", 0.99), 1e-6)


def _bonus(facts: Facts) -> float:
    """Returns the entropy bonus of a step; 0 for an agent without temperature."""
    names = [name for name in TEMPERATURES if name in facts.curves]
    if not names or "agent/entropy" not in facts.curves:
        return 0.0
    temperature, entropy = (facts.curves[name].values[-1] for name in (names[0], "agent/entropy"))
    return float(np.nanmax(np.abs(temperature * entropy)))


def units_are_dead(facts: Facts) -> Finding | None:
    """Units of a last hidden layer that give the same output for every observation."""
    for each in facts.probes:
        for name, units in each.units.items():
            if units.dead > DEAD:
                return Finding(
                    "units_are_dead",
                    SERIOUS,
                    f"{100 * units.dead:.0f} % of the units in the last hidden layer of the {name} are dead: they give "
                    "the same output for every observation",
                    f"lower `hyper.{name}_lr`, or set `agent.networks.{name}.norm` layer or "
                    f"`agent.networks.{name}.activation` elu",
                )
    return None


def units_explode(facts: Facts) -> Finding | None:
    """Units with very large outputs."""
    for each in facts.probes:
        for name, units in each.units.items():
            if units.largest > EXPLODED:
                return Finding(
                    "units_explode",
                    SERIOUS,
                    f"the units in the last hidden layer of the {name} give up to {units.largest:.3g}",
                    f"lower `hyper.{name}_lr` or set `agent.networks.{name}.norm` layer",
                )
    return None


def gradients_are_extreme(facts: Facts) -> Finding | None:
    """Gradients that explode or vanish."""
    for each in facts.probes:
        for name, norm in each.gradients.items():
            if "temperature" in name or SMALL_GRADIENT <= norm <= LARGE_GRADIENT:
                continue
            large = norm > LARGE_GRADIENT
            part = "actor" if "actor" in name else "critic"
            remedy = (
                f"clip it with `agent.optimisers.{part}.clip_norm`, or lower the weights of the loss, such as "
                "`agent.smoothness`"
                if large
                else f"check `agent.networks.{part}`: nothing reaches its weights"
            )
            return Finding(
                "gradients_are_extreme",
                SERIOUS,
                f"the gradient of `{name}` has {'exploded' if large else 'vanished'}: its norm is {norm:.2g}",
                remedy,
            )
    return None


def temperature_dominates(facts: Facts) -> Finding | None:
    """An entropy bonus that outweighs the rewards."""
    reward, bonus = scaled_reward(facts), _bonus(facts)
    if not reward or facts.option("normalise.rewards") or facts.progress < 1 or bonus <= BONUS * reward:
        return None
    fixed = facts.option("fixed_temperature")
    return Finding(
        "temperature_dominates",
        SERIOUS,
        f"the entropy bonus of a step, {bonus:.3g}, outweighs the rewards, whose root mean square is {reward:.3g}",
        "lower `hyper.temperature`" + (", or learn it without `agent.fixed_temperature`" if fixed else ""),
    )


def temperature_collapsed(facts: Facts) -> Finding | None:
    """A temperature of almost 0."""
    reward = scaled_reward(facts) or 1.0
    for name in TEMPERATURES:
        late = facts.late(name)
        if late is not None and np.min(late) < COLLAPSED * reward:
            return Finding(
                "temperature_collapsed",
                SERIOUS,
                f"the temperature has collapsed to {np.min(late):.2g}, while rewards are about {reward:.2g}",
                "nothing keeps the policy random; lower `hyper.temperature_lr` or raise `hyper.target_entropy`",
            )
    return None


def _entropy_gap(facts: Facts) -> tuple[float, float] | None:
    """Returns entropy and target per dimension, of the member where they differ most; None if it is not learned."""
    entropy, target = facts.late("agent/entropy"), facts.late("hyper/target_entropy")
    if entropy is None or target is None or facts.option("fixed_temperature") or not facts.action_size:
        return None
    entropy = entropy / facts.action_size
    worst = int(np.argmax(np.abs(entropy - target)))
    return float(entropy[worst]), float(target[worst])


def temperature_is_stuck(facts: Facts) -> Finding | None:
    """A learned temperature that does not move, though the entropy is not at its target."""
    gap, curve = _entropy_gap(facts), facts.curves.get("agent/temperature")
    if gap is None or curve is None or abs(gap[0] - gap[1]) < UNMET / 2 or not (curve.values > 0).all():
        return None
    change = float(np.max(np.abs(np.log(curve.values[-1] / curve.values[0]))))
    if change > 0.05:
        return None
    return Finding(
        "temperature_is_stuck",
        SERIOUS,
        f"the temperature stays at {curve.values[-1].mean():.3g}, though the entropy per dimension is {gap[0]:.2f} "
        f"instead of {gap[1]:.2f}",
        "raise `hyper.temperature_lr`",
    )


def entropy_is_impossible(facts: Facts) -> Finding | None:
    """A target entropy above that of the uniform distribution."""
    targets = facts.curves.get("hyper/target_entropy")
    target = facts.current("target_entropy", 0.0)
    if targets is None or target <= MOST_ENTROPY or facts.option("fixed_temperature"):
        return None
    return Finding(
        "entropy_is_impossible",
        SEVERE,
        f"the target entropy per dimension is {target:.3g}, and that of uniform actions in [-1, 1] is only "
        f"{MOST_ENTROPY:.2f}, so that the temperature grows forever",
        "lower `hyper.target_entropy`, usually to -1",
    )


def entropy_is_not_met(facts: Facts) -> Finding | None:
    """An entropy far from its target until the end."""
    gap = _entropy_gap(facts)
    if gap is None or facts.progress < 1 or abs(gap[0] - gap[1]) < UNMET:
        return None
    curve = facts.curves["agent/entropy"].values / facts.action_size
    middle = float(np.mean(np.abs(curve[len(curve) // 2] - gap[1])))
    if abs(gap[0] - gap[1]) < 0.8 * middle:  # still on its way
        return None
    word = "above" if gap[0] > gap[1] else "below"
    return Finding(
        "entropy_is_not_met",
        MINOR,
        f"the entropy per dimension ends at {gap[0]:.2f}, {word} its target of {gap[1]:.2f}",
        "raise `hyper.temperature_lr`, or change `hyper.target_entropy`",
    )
