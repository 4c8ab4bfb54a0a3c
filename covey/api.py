"""The functions that Python users call: train, evolve, resume, load, and register_*."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, TypedDict, Unpack

from covey import agents, envs
from covey.agents import Entry
from covey.agents.recipes import RECIPES, Recipe
from covey.backend import use_cache
from covey.callbacks import Callback, Evaluator, Hooks
from covey.envs.host.descriptor import limit_numbers, source_texts
from covey.envs.options import wrapper_text
from covey.errors import require
from covey.islands.ray import Cluster
from covey.launch import resume_run, start_run
from covey.nn.parts import ACTOR_HEADS, CRITIC_HEADS, ENCODERS, TORSOS, register
from covey.plugins import allow, import_plugins, module_of, module_of_source, module_of_wrapper
from covey.population.pbt import PBT
from covey.run.config import RunConfig, default_config, read_run_config
from covey.run.config_text import expanded, merged, to_json
from covey.run.console import Reporter
from covey.run.policy import build_policy
from covey.run.presets import Basis
from covey.run.run import Run
from covey.storage.folder import RunFolder
from covey.web.report import write_report
from covey.web.skills import write_skills_page


class ResumeOptions(TypedDict, total=False):
    """Options that may change when a run is resumed. `RunConfig` describes each."""

    steps: float
    capacity: float
    evaluations: int
    episodes: int
    checkpoint_minutes: float
    workers: int
    track: Sequence[str]
    device: str
    devices: int
    hyper: Any
    lr: float | str


class RunOptions(ResumeOptions, total=False):
    """Options of a run. `RunConfig` describes each."""

    agent: Any
    hidden: Sequence[int] | int
    env: Any
    name: str
    env_kwargs: dict[str, Any]
    wrappers: Sequence[str | Callable[[Any], Any]]
    episode_length: int
    reward_parts: Sequence[str]
    env_pixels: int
    env_pixels_beside: bool
    env_stack: int
    env_descriptor: str | Callable[..., Any] | Sequence[str | Callable[..., Any]]
    env_descriptor_low: float | Sequence[float]
    env_descriptor_high: float | Sequence[float]
    eval_env: Any
    eval_env_kwargs: dict[str, Any]
    seed: int
    envs: int
    warmup: float
    updates_per_step: float
    replay: str | Path
    init_from: str | Path
    warmup_actions: Literal["auto", "random", "policy"]
    population_axis: Literal["auto", "map", "vmap"]
    precision: Literal["float32", "bfloat16"]
    overlap: bool


class TrainOptions(RunOptions, total=False):
    """Options of `train`."""

    seeds: int


def train(
    algorithm: str,
    *,
    out: str | Path | None = None,
    quiet: bool = False,
    preset: bool = True,
    recipe: str = "",
    callbacks: Sequence[Callback] = (),
    evaluator: Evaluator | None = None,
    **options: Unpack[TrainOptions],
) -> Run:
    """Trains an agent, in a run folder.

    Args:
        algorithm: The agent, such as "td3"; `covey agents` lists them.
        out: The run folder; by default the first free runs/ENV-AGENT-NUMBER. A folder that holds the same run
            unfinished is resumed.
        quiet: Prints nothing.
        preset: Starts from the preset for this agent and environment, if there is one; False starts from the plain
            defaults.
        recipe: Starts from a recipe, such as "crossq" for "sac", instead of the values that the preset has for the same
            options; `covey recipes` lists them.
        callbacks: Functions of yours that the run calls when it logs, evaluates and saves, and that may stop it.
        evaluator: `evaluator(run)` is called for each member at each evaluation; `run` has the member's current policy
            as its best (`run.policy()`, `run.evaluate()`). It returns numbers by name, which are logged as
            `eval/NAME`. One called `fitness` ranks policies instead of the return.
        **options: The fields of `RunConfig`, such as `env`, `steps`, `seed`, `seeds`. `agent` is a dictionary or the
            agent's Config; `hyper` is a dictionary or the agent's Hyper, whose values are numbers or schedules. `lr`
            sets every learning rate, `hidden` the hidden layers of every network; an option named itself wins. `env`
            is a name, or an environment (covey's or Gymnasium's), or a class or function that makes one; pass an
            object again to `load` and `resume`.

    Returns:
        The finished run.

    Example:
        >>> run = covey.train("td3", env="pendulum", steps=20_000, lr=1e-3, hidden=[64, 64])
        >>> run = covey.train("sac", env="gymnasium:Hopper-v5", env_kwargs={"terminate_when_unhealthy": False})
        >>> run = covey.train("sac", env=lambda: gymnasium.make("Hopper-v5", frame_skip=2), episode_length=500)
        >>> run = covey.train("sac", env="gymnasium:Hopper-v5", recipe="crossq", hidden=[256, 256])
        >>> print(run.evaluate(episodes=20))
    """
    hooks = Hooks(callbacks, evaluator)
    return _train(algorithm, out, quiet, Basis(preset, recipe), Cluster(), hooks, dict(options))


def evolve(
    algorithm: str,
    *,
    members: int = 8,
    pbt: dict[str, Any] | PBT | None = None,
    space: dict[str, Any] | None = None,
    out: str | Path | None = None,
    quiet: bool = False,
    preset: bool = True,
    recipe: str = "",
    engine: Literal["local", "ray"] = "local",
    islands: int = 0,
    ray_address: str = "",
    plugins: Sequence[str] = (),
    callbacks: Sequence[Callback] = (),
    evaluator: Evaluator | None = None,
    **options: Unpack[RunOptions],
) -> Run:
    """Trains a population and tunes its hyper-parameters at the same time. The best member is the run's policy.

    Args:
        algorithm: The agent, such as "sac".
        members: The number of members.
        pbt: How they are tuned: a `PBT` or a dictionary of its fields, such as {"bottom": 0.5}.
        space: Search ranges that differ from the agent's own, such as {"actor_lr": "1e-5:1e-2", "tau": "off"}.
        out: The run folder, as in `train`.
        quiet: Prints nothing.
        preset: Starts from the preset, as in `train`.
        recipe: Starts from a recipe, as in `train`. Its learning rates are searched unless they follow a schedule.
        engine: "ray" divides the members among islands that do not wait for each other.
        islands: With "ray", the number of islands; 0 means 4.
        ray_address: An existing Ray cluster; by default one is started on this machine.
        plugins: Modules that each island imports first, which register environments, networks or agents.
        callbacks: As in `train`. With "ray", register them in a plugin (`covey.register_callback`).
        evaluator: As in `train`; not with "ray".
        **options: The options of `train`, without `seeds`. With `lr` the learning rates are fixed, not searched.

    Returns:
        The finished run.

    Example:
        >>> run = covey.evolve("sac", env="reacher", members=8, steps=50_000)
    """
    require("seeds" not in options, "`covey.evolve` takes `members`, not seeds.")
    allow(*plugins)
    for name in ("env", "eval_env"):
        require(
            engine == "local" or isinstance(options.get(name, ""), str),
            f"`{name}` must be a name with `engine` ray: an object exists in this process only, not on its islands.",
        )
    population = {"members": members, "pbt": pbt or {}, "space": space or {}, "engine": engine, "islands": islands}
    hooks = Hooks(callbacks, evaluator)
    return _train(algorithm, out, quiet, Basis(preset, recipe), Cluster(ray_address), hooks, {**options, **population})


def _train(
    algorithm: str,
    out: str | Path | None,
    quiet: bool,
    basis: Basis,
    cluster: Cluster,
    hooks: Hooks,
    options: dict[str, Any],
) -> Run:
    require(isinstance(basis.preset, bool), f"`preset` must be True or False, not {basis.preset!r}.")
    options |= {name: _named(options[name]) for name in ("env", "eval_env") if name in options}
    if "wrappers" in options:
        options["wrappers"] = tuple(map(wrapper_text, options["wrappers"]))
    if "env_descriptor" in options:
        options["env_descriptor"] = source_texts(options["env_descriptor"])
    limits = [name for name in ("env_descriptor_low", "env_descriptor_high") if name in options]
    options |= {name: limit_numbers(options[name]) for name in limits}
    allow(*map(module_of, (options.get("env", ""), options.get("eval_env", ""))))
    allow(*map(module_of_wrapper, options.get("wrappers", ())))
    allow(*map(module_of_source, options.get("env_descriptor", ())))
    config = basis.config(algorithm, **options)
    return start_run(config, Path(out) if out else None, Reporter(quiet), basis, cluster=cluster, hooks=hooks)


def _named(env: Any) -> str:
    """Returns the name of an environment; one that is an object is kept for this process."""
    return env if isinstance(env, str) else envs.hold(env)


def _pass_again(config: RunConfig[Any, Any], env: Any, eval_env: Any) -> None:
    """Keeps the environments that a run was trained with as objects, under the names in its configuration.

    Those that other runs have passed under these names are forgotten: they may be others.
    """
    for option, name, given in (("env", config.env, env), ("eval_env", config.eval_env, eval_env)):
        envs.release(name)
        if given is not None:
            require(
                envs.is_object(name),
                f"`{option}` is {name!r} in this run, and can't change within it: leave it out. (Only a run that was "
                "trained with an object needs it again.)",
            )
            envs.hold(given, name)


def resume(
    path: str | Path,
    *,
    quiet: bool = False,
    plugins: Sequence[str] = (),
    env: Any = None,
    eval_env: Any = None,
    callbacks: Sequence[Callback] = (),
    evaluator: Evaluator | None = None,
    **options: Unpack[ResumeOptions],
) -> Run:
    """Resumes a run from its newest checkpoint, bit for bit as if it had not been interrupted.

    Args:
        path: The run folder.
        quiet: Prints nothing.
        plugins: Modules to import first (see `load`).
        env: The environment, if the run was trained with an object (see `load`).
        eval_env: Likewise, the evaluation environment.
        callbacks: As in `train`.
        evaluator: As in `train`.
        **options: Options to change from here on; a change is recorded in the run folder.

    Returns:
        The finished run.

    Example:
        >>> run = covey.resume("runs/pendulum-td3-0", steps=40_000)
    """
    import_plugins(plugins)
    old = read_run_config(RunFolder(Path(path)))
    _pass_again(old, env, eval_env)
    new = None
    if options:
        values = to_json(old)
        del values["algorithm"]
        new = default_config(old.algorithm, **merged(values, expanded(old.algorithm, dict(options))))
    return resume_run(Path(path), new, Reporter(quiet), hooks=Hooks(callbacks, evaluator))


def load(path: str | Path, plugins: Sequence[str] = (), *, env: Any = None, eval_env: Any = None) -> Run:
    """Loads the run in a folder.

    Args:
        path: The run folder.
        plugins: Modules to import first. A run whose environment is `gymnasium:MODULE:NAME` needs MODULE here, because
            a run folder alone never makes covey import code. So do its wrappers.
        env: The environment, class or factory, if the run was trained with one instead of a name.
        eval_env: Likewise, the evaluation environment.

    Returns:
        The run.

    Example:
        >>> policy = covey.load("runs/pendulum-td3-0").policy()
        >>> run = covey.load("runs/cart", plugins=["my_envs"])
        >>> run = covey.load("runs/object-MyArm-sac-0", env=MyArm)
    """
    import_plugins(plugins)
    use_cache()
    folder = RunFolder(Path(path))
    config = read_run_config(folder)
    _pass_again(config, env, eval_env)
    # An object may be passed again under the same name, so this run's program is built from this one.
    return Run(folder, config, build_policy(config) if env is not None or eval_env is not None else None)


def report(*runs: Run | str | Path, out: str | Path | None = None) -> Path:
    """Writes a page about one or more runs: summary, the doctor's findings, curves, film, configuration, a comparison.

    It is one HTML file that makes no request. Every run writes its own, report.html in its folder, when it ends.

    Args:
        *runs: The runs, or their folders. They may still be training.
        out: The file; by default report.html in the folder of a single run, or in the current folder.

    Returns:
        The file.

    Example:
        >>> covey.report("runs/pendulum-td3-0", "runs/pendulum-sac-0", out="comparison.html")
        PosixPath('comparison.html')
    """
    folders = [run.path if isinstance(run, Run) else Path(run) for run in runs]
    return write_report(folders, Path(out) if out is not None else None, examine=True)


def skills_page(
    run: Run | str | Path, out: str | Path | None = None, *, skills: Sequence[int] | None = None, seed: int = 0
) -> Path:
    """Writes a page on which the user picks a skill of a run on a map and sees its path, its numbers and its film.

    It is one HTML file that makes no request.

    Args:
        run: The run, or its folder.
        out: The file; by default media/skills.html in the run folder.
        skills: The numbers of at most 36 skills, among those that `run.plot_skills` shows; by default all of them, or
            36 that represent them.
        seed: The seed of the start state, which all skills share.

    Returns:
        The file.

    Raises:
        CoveyError: The agent learns no skills, there is no such skill, or the file is no HTML file.

    Example:
        >>> covey.skills_page("runs/point-free-diayn-0")
        PosixPath('runs/point-free-diayn-0/media/skills.html')
    """
    found = run if isinstance(run, Run) else load(run)
    return write_skills_page(found, Path(out) if out is not None else None, skills, seed)


def register_env(name: str, factory: Callable[..., envs.Env], summary: str = "") -> None:
    """Registers an environment under a name, for `covey.train` and the command line.

    Args:
        name: Its name.
        factory: `factory()` makes it; if it takes arguments, `env_kwargs` sets them.
        summary: One line for `covey envs`.

    Example:
        >>> covey.register_env("cart", Cart, "push a cart to the middle")
    """
    envs.register(name, factory, summary)


def register_agent(name: str, entry: Entry) -> None:
    """Registers an algorithm under a name.

    Args:
        name: Its name.
        entry: Its Config, Hyper, search space and constructor.

    Example:
        >>> covey.register_agent("foo", covey.Entry(FooConfig, FooHyper, FOO_SPACE, Foo, "what it does"))
    """
    require(name not in agents.REGISTRY, f"There is already an agent called {name!r}.")
    agents.REGISTRY[name] = entry


def register_recipe(
    algorithm: str, name: str, options: dict[str, Any], summary: str, source: str = "", notes: str = ""
) -> None:
    """Registers a recipe: a named set of options of an algorithm, for `recipe` and `--recipe`.

    Args:
        algorithm: The agent whose options they are. An agent that holds another one, as DIAYN holds a SAC, takes its
            recipes too.
        name: Its name: lower-case letters, digits and hyphens.
        options: The options, in the form that `covey.train` takes, except those of the environment.
        summary: One line for `covey recipes`.
        source: Where the values are from.
        notes: What else a user should know, such as what it costs.

    Example:
        >>> options = {"agent": {"critics": {"number": 5, "combine": "mean"}}, "lr": 1e-3}
        >>> covey.register_recipe("sac", "five", options, "five critics, whose mean is the target")
        >>> covey.train("sac", env="pendulum", recipe="five")
    """
    algorithm = agents.canonical_name(algorithm)
    require(re.fullmatch(r"[a-z0-9-]+", name) is not None, f"{name!r} can't be a recipe's name: use a to z, 0 to 9, -.")
    require((algorithm, name) not in RECIPES, f"There is already a recipe of {algorithm} called {name!r}.")
    tied = sorted({"env", "members", "seeds", "pbt", "engine", "islands"} & options.keys())
    require(not tied, f"A recipe can't set {', '.join(f'`{each}`' for each in tied)}: the user of it does.")
    default_config(algorithm, **options)  # an option that does not exist is an error here, not at its first use
    RECIPES[algorithm, name] = Recipe(summary, source, options, notes)


def register_torso(name: str) -> Callable[[type], type]:
    """Class decorator: registers a flax module as an encoder or a torso.

    Args:
        name: Its name, for `--agent.networks.actor.kind`.

    Example:
        >>> @covey.register_torso("wave")
        ... class Wave(flax.linen.Module): ...
    """
    return register(TORSOS, name)


def register_encoder(name: str) -> Callable[[type], type]:
    """Class decorator: registers a flax module from one part of an observation to a vector of features.

    It gets the part as it is: an image is uint8 with the shape [..., height, width, channels]. It may have the fields
    `channels`, `features` and `weights`, which then are options.

    Args:
        name: Its name, for `--agent.networks.image.kind` or `--agent.networks.encoders PART=NAME`.

    Example:
        >>> @covey.register_encoder("tiny")
        ... class Tiny(flax.linen.Module):
        ...     @flax.linen.compact
        ...     def __call__(self, x):
        ...         small = x[..., ::4, ::4, :].astype(jnp.float32) / 255
        ...         return flax.linen.Dense(32)(small.reshape(*x.shape[:-3], -1))
    """
    return register(ENCODERS, name)


def register_actor_head(name: str) -> Callable[[type], type]:
    """Class decorator: registers a flax module from features to an action in [-1, 1].

    Args:
        name: Its name, for `--agent.networks.actor-head`.

    Example:
        >>> @covey.register_actor_head("bang-bang")
        ... class BangBang(flax.linen.Module): ...
    """
    return register(ACTOR_HEADS, name)


def register_critic_head(name: str) -> Callable[[type], type]:
    """Class decorator: registers a flax module from features to one value.

    Args:
        name: Its name, for `--agent.networks.critic-head`.

    Example:
        >>> @covey.register_critic_head("dueling")
        ... class Dueling(flax.linen.Module): ...
    """
    return register(CRITIC_HEADS, name)
