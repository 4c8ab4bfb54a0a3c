"""The option names of other libraries, so that an error can name covey's option for them."""

from collections.abc import Iterable

SYNONYMS = {
    "env": "env_id environment env_name task environment_name",
    "steps": "total_timesteps n_timesteps num_timesteps timesteps num_steps max_steps total_steps",
    "envs": "n_envs num_envs env_batch_size",
    "seeds": "n_seeds num_seeds members",
    "members": "population_size pop_size seeds",
    "lr": "learning_rate lr_schedule",
    "hidden": "policy_kwargs net_arch hidden_sizes hidden_dim hidden_layer_sizes policy_hidden_layer_size "
    "critic_hidden_layer_size layer_sizes",
    "capacity": "buffer_size replay_size replay_buffer_size max_replay_size",
    "warmup": "learning_starts start_timesteps min_replay_size start_steps random_steps warmup_steps",
    "updates_per_step": "train_freq gradient_steps train_frequency utd_ratio grad_updates_per_step "
    "num_training_updates update_to_data",
    "evaluations": "eval_freq num_evals eval_interval evaluation_interval eval_frequency n_evaluations",
    "episodes": "n_eval_episodes eval_episodes num_eval_envs n_eval_envs num_eval_episodes",
    "checkpoint_minutes": "save_freq checkpoint_freq save_interval",
    "precision": "dtype",
    "out": "log_folder log_dir logdir save_path output_dir run_dir",
    "workers": "vec_env_cls num_workers n_workers",
    "hyper.actor_lr": "policy_lr actor_learning_rate policy_learning_rate pi_lr",
    "hyper.critic_lr": "q_lr critic_learning_rate qf_learning_rate value_lr qf_lr",
    "hyper.temperature_lr": "alpha_lr alpha_learning_rate",
    "hyper.discount": "gamma discounting discount_factor",
    "hyper.tau": "polyak soft_tau_update target_tau soft_target_tau",
    "hyper.temperature": "ent_coef alpha alpha_init init_temperature entropy_coefficient",
    "agent.fixed_temperature": "autotune ent_coef fix_alpha automatic_entropy_tuning",
    "hyper.exploration_noise": "action_noise expl_noise noise_std",
    "hyper.target_noise": "target_policy_noise policy_noise",
    "hyper.target_noise_clip": "noise_clip target_noise_clip",
    "hyper.reward_scale": "reward_scaling reward_factor",
    "agent.policy_delay": "policy_frequency policy_freq actor_update_interval",
    "agent.n_step": "n_steps multi_step nstep",
    "agent.critics.number": "n_critics num_critics num_qs",
    "agent.critics.bins": "num_bins n_atoms num_atoms",
    "agent.normalise.observations": "normalize normalize_observations vecnormalize norm_obs",
    "agent.normalise.rewards": "norm_reward normalize_rewards",
    "agent.networks.actor.activation": "activation_fn activation",
    "agent.networks.critic.norm": "layer_norm use_layer_norm",
    "agent.optimisers.critic.clip_norm": "max_grad_norm grad_clip",
    "agent.skills.number": "num_skills n_skills",
}
"""covey's options, and what Stable-Baselines3, RL-Zoo, CleanRL, Brax and QDax call them."""

ADVICE = {
    "tensorboard_log tensorboard": "TensorBoard files are always written: tensorboard --logdir runs.",
    "verbose progress_bar silent": "Progress is always printed; in Python, quiet=True prints nothing.",
    "wandb_project_name wandb_entity wandb_project": "`--track wandb` tracks a run; WANDB_PROJECT and WANDB_ENTITY "
    "name the project.",
    "use_wandb report_to logger": "`--track wandb` tracks a run, as do trackio and mlflow; TensorBoard is always on.",
    "capture_video record_video save_video": "Every run ends with an animation, and `covey video RUN` records another.",
    "save_model upload_model": "Every run saves checkpoints and its best policy in its folder.",
    "algo exp_name": "The agent is the first argument, as in `covey train sac`.",
    "deterministic eval_deterministic": "Evaluation is always deterministic.",
    "torch_deterministic cuda": "A run is always reproducible, and uses the device that jax finds.",
    "optimize_hyperparameters n_trials sampler": "`covey evolve AGENT` tunes hyper-parameters.",
    "render_mode render": "`covey video RUN` records an episode.",
}
"""Names without an option here, and what to do instead."""

_TARGETS: dict[str, list[str]] = {}
for _target, _names in SYNONYMS.items():
    for _name in _names.split():
        _TARGETS.setdefault(_name, []).append(_target)
_ADVICE = {name: text for names, text in ADVICE.items() for name in names.split()}


def suggestion(name: str, known: Iterable[str]) -> str:
    """Returns a sentence that names covey's option for that of another library, or "" if there is none.

    Args:
        name: The option as the user wrote it, in any spelling: `learning_rate`, `--hyper.learning-rate`.
        known: The options that exist, as dotted field names. The sentence names only these.
    """
    known = list(known)
    last = name.lstrip("-").replace("-", "_").lower().rpartition(".")[2]
    if last in _ADVICE:
        return _ADVICE[last]
    found = [path for target in _TARGETS.get(last, ()) if (path := _path(target, known))]
    # A name that covey has too, written at another place: `gamma` is no option anywhere, `batch_size` one of the agent.
    found = found or sorted((each for each in known if each.rpartition(".")[2] == last), key=len)[:1]
    if not found:
        return ""
    rates = [f"`{each}`" for each in known if each.startswith("hyper.") and each.endswith("_lr")]
    more = f" (or {', '.join(rates[:-1])} and {rates[-1]})" if found == ["lr"] and len(rates) > 1 else ""
    return f"Did you mean {' and '.join(f'`{each}`' for each in found)}{more}?"


def _path(target: str, known: list[str]) -> str:
    """Returns where an agent has an option: `hyper.discount` is `hyper.sac.discount` for an agent that holds a SAC."""
    group, _, rest = target.partition(".")
    inner = [each for each in known if each.startswith(f"{group}.") and each.endswith(f".{rest}")] if rest else []
    return target if target in known else min(inner, key=len, default="")
