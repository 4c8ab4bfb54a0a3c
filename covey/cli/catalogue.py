"""The commands that list environments, agents, presets and recipes, and that check an environment."""

from dataclasses import dataclass
from importlib.util import find_spec

import tyro

from covey.cli.arguments import UsageError, asks_for_help, parse, take_kwargs, usage
from covey.cli.help import command_help, table, wrapped
from covey.errors import CoveyError, require

TEXTS = {
    "envs": ("[LIBRARY]", "Lists the built-in environments, or those of another library."),
    "agents": (
        "[AGENT]",
        "Lists the agents, or one of them, with their hyper-parameters, defaults and search ranges.",
    ),
    "presets": (
        "[AGENT]",
        "Lists the presets: the default options of an agent on an environment. `covey train ... --preset off` ignores "
        "them.",
    ),
    "recipes": (
        "[AGENT]",
        "Lists the recipes: named sets of options of an agent, from publications. `covey train AGENT --recipe NAME` "
        "starts from one; options given besides win.",
    ),
}
"""The arguments and the help of the commands that take no options."""


LIBRARIES = {"playground": "mujoco_playground"}
"""Modules of libraries whose environments have another prefix."""


def is_installed(prefix: str) -> bool:
    """Whether the library of a prefix is installed. It is not imported."""
    return find_spec(LIBRARIES.get(prefix, prefix)) is not None


def _asks(verb: str, arguments: list[str]) -> bool:
    """Prints the help of a command if it is asked for."""
    if asks_for_help(arguments):
        names, text = TEXTS[verb]
        print(command_help(verb, f"covey {verb} {names}", text))
        return True
    flags = [each for each in arguments if each.startswith("-")]
    usage(not flags, f"`covey {verb}` takes no options, not {' '.join(flags)}.")
    return False


@dataclass(frozen=True)
class CheckOptions:
    """Checks an environment against the contract (docs/extending.md) and prints one line per rule: ok, warn, or WRONG
    and what to change; and how each part of the observation will be used. The exit code is 1 if any rule is broken."""

    env: tyro.conf.Positional[str]
    """The environment; `covey envs` lists them. --env-kwargs.NAME VALUE sets an argument of it."""
    env_pixels: int = 0
    """Observe a picture of the environment, of this width and height in pixels."""
    env_pixels_beside: bool = False
    """With --env-pixels: keep the environment's own observation beside the picture."""
    env_stack: int = 0
    """Frames of each image that the agent observes at once; 0 means 3 with --env-pixels and 1 without."""


def check_env(arguments: list[str]) -> None:
    kwargs, arguments = take_kwargs(arguments, "--env-kwargs")
    given = parse(CheckOptions, arguments, "check-env")
    from covey import envs
    from covey.backend import use_cache
    from covey.envs.check import report

    name = given.env
    use_cache()
    shown = {"pixels": given.env_pixels, "pixels_beside": given.env_pixels_beside, "stack": given.env_stack}
    good = report(name, envs.make(name, kwargs, **shown), print)
    require(good, f"{name} breaks the contract of an environment (docs/extending.md).")


def envs(arguments: list[str]) -> None:
    if _asks("envs", arguments):
        return
    from covey import envs

    usage(len(arguments) <= 1, f"`covey envs` takes at most one library, such as brax, not {' '.join(arguments)}.")
    if arguments:
        listed = envs.adapter(arguments[0]).names()
        require(bool(listed), f"The adapter of {arguments[0]!r} does not list its environments.")
        print("\n".join(f"{arguments[0]}:{name}" for name in listed))
        return
    rows = []
    for name in envs.names():
        spec = envs.make(name).spec
        actions = "1 action" if spec.action_size == 1 else f"{spec.action_size} actions"
        shown = f"{spec.obs_size} observations" if spec.observation.is_vector else f"observation {spec.observation}"
        sizes = f"{shown}, {actions}, {spec.episode_length} steps"
        rows.append((name, f"{envs.ENVS[name].summary} {sizes}."))
    print(table(rows, 22))
    print("\nother libraries (`covey envs LIBRARY` lists their environments):")
    for prefix, adapter in envs.ADAPTERS.items():
        print(table([(f"{prefix}:", adapter.summary)], 22))
        if adapter.install and not is_installed(prefix):
            print(f"    not installed: {adapter.install}")


def agents(arguments: list[str]) -> None:
    if _asks("agents", arguments):
        return
    import jax

    from covey import agents

    usage(len(arguments) <= 1, f"`covey agents` takes one agent, not {' '.join(arguments)}.")
    for name in [_canonical(text) for text in arguments] or agents.REGISTRY:
        entry = agents.entry(name)
        print(wrapped(f"{name}: {entry.summary}", "    ", ""))
        for path, value in jax.tree.flatten_with_path(entry.hyper(), is_leaf=lambda x: x is None or x == ())[0]:
            hyper = jax.tree_util.keystr(path, simple=True, separator=".")
            space = entry.space[hyper]
            flag = f"--hyper.{hyper.replace('_', '-')}"
            text = "-" if value in (None, ()) else f"{value:g}"
            print(f"  {flag:<30}{text:<8}  search {space.low:g} to {space.high:g}, {space.scale}")


def presets(arguments: list[str]) -> None:
    if _asks("presets", arguments):
        return
    from covey.run.presets import PRESETS, PUBLISHED, describe

    usage(len(arguments) <= 1, f"`covey presets` takes one agent, not {' '.join(arguments)}.")
    chosen = [_canonical(text) for text in arguments]
    listed = [key for key in PRESETS if not chosen or key[0] in chosen]
    require(bool(listed), f"There is no preset for {' '.join(chosen)}.")
    for key in listed:
        source = f" (published, not tuned here: {PUBLISHED[key].source})" if key in PUBLISHED else ""
        print(wrapped(f"{key[0]} on {key[1]}: {describe(*key)}{source}", "    ", ""))


def recipes(arguments: list[str]) -> None:
    if _asks("recipes", arguments):
        return
    from covey.agents import REGISTRY
    from covey.agents.recipes import recipes_of
    from covey.run.presets import recipe_text

    usage(len(arguments) <= 1, f"`covey recipes` takes one agent, not {' '.join(arguments)}.")
    chosen = [_canonical(text) for text in arguments]
    listed = [
        (agent, name, found)
        for agent in chosen or REGISTRY
        for name, found in recipes_of(agent).items()
        if chosen or found.owner == agent
    ]
    require(bool(listed), f"There is no recipe for {' '.join(chosen)}. `covey recipes` lists those of all agents.")
    for agent, name, found in listed:
        recipe = found.recipe
        print(wrapped(f"{agent} {name}: {recipe.summary}", "    ", ""))
        for title, text in (("options", recipe_text(agent, name)), ("source", recipe.source), ("notes", found.notes)):
            if text:
                print(wrapped(f"{title}: {text}", "      ", "    "))


def _canonical(text: str) -> str:
    from covey.agents import canonical_name

    try:
        return canonical_name(text)
    except CoveyError as error:
        raise UsageError(str(error)) from None
