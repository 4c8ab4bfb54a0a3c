"""Rules about what a run does in the end: its actions, skills, members and returns."""

import math

import numpy as np

from covey.doctor.facts import MINOR, SERIOUS, Facts, Finding

SAME = 4
"""This many equal evaluations in a row are no coincidence."""
SATURATED = 0.99
"""An action beyond this share of its range is at its limit."""
CONSTANT = 0.95
"""The actor is saturated if so many of its actions are at the same limit."""
JUMPS, AT_LIMITS = 0.6, 0.5
"""A policy jumps between limits from this mean change and this share at the limits on."""
NO_SPREAD = 3e-3
"""Deviation of sampled actions below which nothing is explored."""
NEVER, ALWAYS = 0.005, 0.97
"""Probabilities to repeat."""
TOLD_APART = 0.1
"""Share of log K nats, or for continuous skills nats, that skills must carry."""
EDGE = 1e-5
"""Distance from the edge of a range, relative to its value: perturbations are clipped to the edge."""
BELOW = 0.5
"""Evaluations are below training by this share of what was gained."""
DISAGREE = 0.5
"""Seeds disagree by this share of what the best has gained."""


def explores_nothing(facts: Facts) -> Finding | None:
    """Sampled actions that hardly differ from each other."""
    for each in facts.probes:
        spread = float(np.max(each.spread))
        saturated = np.mean(np.abs(each.greedy) > SATURATED) > 0.5
        if spread < NO_SPREAD and not (saturated and spread > 0):
            return Finding(
                "explores_nothing",
                SERIOUS,
                f"exploration covers nothing: sampled actions at one observation have a deviation of {spread:.2g}",
                "raise `hyper.exploration_noise` (TD3) or `hyper.target_entropy` (SAC)",
            )
    return None


def actor_is_saturated(facts: Facts) -> Finding | None:
    """One action, at a limit, whatever is observed."""
    for each in facts.probes:
        high, low = np.mean(each.greedy > SATURATED, axis=0), np.mean(each.greedy < -SATURATED, axis=0)
        share = float(np.min(np.maximum(high, low)))
        if share > CONSTANT:
            return _saturated(f"{share:.0%} of its actions are at the same limit, whatever is observed")
    limits, change = facts.late("eval/action_limits"), facts.late("eval/action_change")
    if facts.probes or limits is None or change is None or facts.is_population:
        return None
    if np.max(limits) > CONSTANT and change[np.argmax(limits)] < 0.01:
        return _saturated(f"{np.max(limits):.0%} of its actions are at the limits and do not change")
    return None


def _saturated(evidence: str) -> Finding:
    return Finding(
        "actor_is_saturated",
        SERIOUS,
        f"the actor is saturated: {evidence}".replace("%", " %"),
        "lower `hyper.actor_lr` and `hyper.reward_scale`, or switch on `agent.normalise.observations`",
    )


def jumps_between_limits(facts: Facts) -> Finding | None:
    """A bang-bang policy."""
    limits, change = facts.late("eval/action_limits"), facts.late("eval/action_change")
    if limits is None or change is None or np.mean(limits) < AT_LIMITS or np.mean(change) < JUMPS:
        return None
    return Finding(
        "jumps_between_limits",
        MINOR,
        f"the policy jumps between the limits: {100 * np.mean(limits):.0f} % of its actions are there, and they change "
        f"by {np.mean(change):.2f} per step",
        "add `agent.smoothness.temporal` 1 and `agent.smoothness.spatial` 1",
    )


def repeats_never_or_always(facts: Facts) -> Finding | None:
    """A TAAC whose switch has one answer."""
    repeated = facts.late("agent/repeat_probability")
    if repeated is None or facts.is_population:
        return None
    share = float(repeated[np.argmax(np.abs(repeated - 0.5))])
    if NEVER <= share <= ALWAYS:
        return None
    word = "always" if share > 0.5 else "never"
    return Finding(
        "repeats_never_or_always",
        SERIOUS,
        f"TAAC {word} repeats: it continues the old trajectory with a probability of {100 * share:.1f} %",
        "change `hyper.switch_probability` or `hyper.switch_temperature`, or leave out `agent.advantage_clip` and "
        "`agent.max_repeat`",
    )


def skills_are_alike(facts: Facts) -> Finding | None:
    """Skills that can't be told apart by where they lead."""
    information = facts.late("skills/information")
    if information is None or facts.is_population or facts.progress < 1:
        return None
    discrete = facts.option("skills.kind") == "discrete"
    most = math.log(max(2, facts.option("skills.number", 2))) if discrete else 1.0
    if np.min(information) > TOLD_APART * most:
        return None
    limit = f" of at most {most:.2f}" if discrete else ""
    return Finding(
        "skills_are_alike",
        SERIOUS,
        f"skills can't be told apart: they carry {np.min(information):.2g}{limit} nats of information",
        "choose what they should differ in with `agent.skills.descriptor`, or train longer (`steps`)",
    )


def population_never_replaces(facts: Facts) -> Finding | None:
    """PBT without an exchange."""
    lineage = facts.lineage
    if lineage is None or facts.progress < 1 or lineage.replaced.any():
        return None
    generations = int(lineage.evaluated.sum())
    return Finding(
        "population_never_replaces",
        SERIOUS,
        f"the population has replaced no member in {generations} generations",
        "raise `pbt.bottom` or `pbt.significance`, or lower `pbt.interval`",
    )


def winners_are_at_an_edge(facts: Facts) -> Finding | None:
    """A population that wants to leave the range that it searches."""
    lineage = facts.lineage
    if lineage is None or len(lineage.steps) < 3 or not np.isfinite(lineage.fitness[-1]).any():
        return None
    winner = int(np.nanargmax(lineage.fitness[-1]))
    for name, space in facts.ranges.items():
        values = lineage.hyper.get(name)
        if values is None:
            continue
        for edge, other in ((space.low, space.high), (space.high, space.low)):
            at = np.abs(values[-1] - edge) <= EDGE * max(abs(edge), abs(other) * EDGE)
            if at[winner] and np.mean(at) >= 0.5:
                return Finding(
                    "winners_are_at_an_edge",
                    SERIOUS,
                    f"the winner and {int(at.sum())} of {len(at)} members have `{name}` at the edge of its range, "
                    f"{edge:g}",
                    f"widen `space.{name}` beyond {space.low:g}:{space.high:g}",
                )
    return None


def evaluation_is_below_training(facts: Facts) -> Finding | None:
    """Greedy episodes that earn less than those with exploration."""
    trained, evaluated = facts.late("train/return"), facts.late("eval/return")
    if trained is None or evaluated is None or facts.is_skill_agent or facts.progress < 1:
        return None
    spreads = [np.ptp(facts.curves[f"{kind}/return"].values, axis=0) for kind in ("train", "eval")]
    gap = trained - evaluated
    low, high = facts.late("eval/return_low"), facts.late("eval/return_high")
    noise = (high - low) / 2 if low is not None and high is not None else 0.0
    below = gap > np.maximum(BELOW * np.maximum(*spreads), noise)
    if not below.any():
        return None
    worst = int(np.argmax(np.where(below, gap, -np.inf)))
    return Finding(
        "evaluation_is_below_training",
        SERIOUS,
        f"evaluation is below training: return {evaluated[worst]:.4g} against {trained[worst]:.4g} with exploration",
        "compare `eval_env` and `eval_env_kwargs` with `env`; the greedy action may also be worse than its neighbours",
    )


def seeds_disagree(facts: Facts) -> Finding | None:
    """Seeds of which some learn and others do not."""
    late, curve = facts.late("eval/return"), facts.curves.get("eval/return")
    if late is None or curve is None or len(late) < 2 or facts.is_population or facts.is_skill_agent:
        return None
    start = float(np.mean(curve.values[0]))
    gained, gap = float(late.max()) - start, float(np.ptp(late))
    low, high = facts.late("eval/return_low"), facts.late("eval/return_high")
    noise = float(np.max(high - low)) if low is not None and high is not None else 0.0
    if facts.progress < 1 or gained <= 0 or gap <= DISAGREE * gained or gap <= noise:
        return None
    seed = int(facts.options.get("seed", 0))
    return Finding(
        "seeds_disagree",
        SERIOUS,
        f"seeds disagree: seed {seed + int(late.argmax())} ends at {late.max():.4g}, seed {seed + int(late.argmin())} "
        f"at {late.min():.4g}, from {start:.4g} at the start",
        "train more `seeds` before you compare anything; a longer `warmup` or more exploration may find it every time",
    )


def never_changes(facts: Facts) -> Finding | None:
    """Evaluations that are equal, episode by episode. Where all episodes have one return, nothing can be said."""
    last = facts.evaluations[-SAME:]
    if len(last) < SAME or np.ptp(last[-1]) == 0:
        return None
    if not all(np.array_equal(last[0], each) for each in last[1:]):
        return None
    return Finding(
        "never_changes",
        SERIOUS,
        f"the last {SAME} evaluations are equal, episode by episode: the greedy policy does not change, or rewards do "
        "not depend on it",
        "its actions may be at their limits, or `hyper.actor_lr` and `hyper.critic_lr` too high or too low",
    )


def no_better_than_untrained(facts: Facts) -> Finding | None:
    """A best policy whose return is not significantly above that of the untrained one."""
    if facts.final is None or facts.untrained is None or facts.is_skill_agent:
        return None
    gain = facts.final.centre - facts.untrained.centre
    error = np.hypot(facts.final.high - facts.final.centre, facts.untrained.high - facts.untrained.centre)
    if np.isnan(error) or gain > error:
        return None
    text = f"the best policy is not clearly better than the untrained one, whose return was {facts.untrained}"
    is_saturated = facts.actions is not None and bool(np.all(np.abs(facts.actions) > SATURATED))
    return Finding(
        "no_better_than_untrained",
        SERIOUS,
        f"{text}; all its actions are at their limits" if is_saturated else text,
        "train longer (`steps`), or try a preset or other learning rates (`lr`)",
    )
