"""The rules, causes before their symptoms. A rule is a function from `Facts` to a `Finding`, or to None.

To add one, write the function in the module where it belongs, and add it to RULES.
"""

from collections.abc import Callable

from covey.doctor import data_rules, learning_rules, outcome_rules
from covey.doctor.facts import Facts, Finding

RULES: tuple[Callable[[Facts], Finding | None], ...] = (
    data_rules.environment_not_finite,
    data_rules.far_outside,
    learning_rules.entropy_is_impossible,
    data_rules.rewards_are_constant,
    data_rules.observations_are_constant,
    data_rules.episodes_end_at_once,
    data_rules.reward_scale,
    data_rules.observation_scale,
    data_rules.rewards_are_sparse,
    data_rules.warmup_is_short,
    data_rules.episodes_never_end,
    learning_rules.loss_not_finite,
    learning_rules.critics_are_identical,
    learning_rules.temperature_is_stuck,
    learning_rules.temperature_dominates,
    learning_rules.temperature_collapsed,
    outcome_rules.repeats_never_or_always,
    outcome_rules.explores_nothing,
    outcome_rules.skills_are_alike,
    outcome_rules.population_never_replaces,
    outcome_rules.winners_are_at_an_edge,
    learning_rules.values_diverge,
    learning_rules.values_are_far_from_returns,
    learning_rules.gradients_are_extreme,
    learning_rules.units_explode,
    learning_rules.critics_are_apart,
    learning_rules.units_are_dead,
    outcome_rules.actor_is_saturated,
    outcome_rules.evaluation_is_below_training,
    outcome_rules.seeds_disagree,
    outcome_rules.never_changes,
    outcome_rules.no_better_than_untrained,
    outcome_rules.jumps_between_limits,
    learning_rules.entropy_is_not_met,
)


def findings(facts: Facts) -> list[Finding]:
    """Returns what the rules find, worst first; of equally bad findings, causes before symptoms.

    Args:
        facts: What is known about the run.

    Example:
        >>> findings(Facts(hyper={"actor_lr": (10.0, 10.0)}, space={"actor_lr": Range(1e-5, 3e-3)}))[0].rule
        'far_outside'
    """
    found = [finding for finding in (rule(facts) for rule in RULES) if finding]
    return sorted(found, key=lambda finding: -finding.severity)
