"""The commands that list environments, agents and presets, and that check an environment."""

from covey.cli.arguments import first, take_kwargs
from covey.errors import require

# Help of the commands that take no options.
HELP = {
    "check-env": """\
covey check-env ENV [--env-kwargs.NAME VALUE]

Checks an environment against the contract (docs/extending.md) and prints one line per rule: ok, or WRONG and what
to change. The exit code is 1 if any rule is broken. Example: covey check-env brax:ant""",
    "envs": """\
covey envs [LIBRARY]

Lists the built-in environments, or those of another library. Example: covey envs brax""",
    "agents": """\
covey agents [AGENT]

Lists the agents, or one of them, with their hyper-parameters, defaults and search ranges. Example: covey agents sac""",
    "presets": """\
covey presets

Lists the presets: the default options of an agent on an environment. `covey train ... --preset off` ignores them.""",
}


def check_env(arguments: list[str]) -> None:
    from covey import envs
    from covey.backend import use_cache
    from covey.envs.check import report

    name, rest = first(arguments, "an environment", "covey check-env brax:ant")
    kwargs, rest = take_kwargs(rest, "--env-kwargs")
    require(not rest, f"`covey check-env` takes one environment and --env-kwargs.NAME VALUE, not {' '.join(rest)} too.")
    use_cache()
    good = report(name, envs.make(name, kwargs), print)
    require(good, f"{name} breaks the contract of an environment (docs/extending.md).")


def envs(arguments: list[str]) -> None:
    from covey import envs

    require(len(arguments) <= 1, f"`covey envs` takes at most one library, such as brax, not {' '.join(arguments)}.")
    if arguments:
        listed = envs.adapter(arguments[0]).names()
        require(bool(listed), f"The adapter of {arguments[0]!r} does not list its environments.")
        print("\n".join(f"{arguments[0]}:{name}" for name in listed))
        return
    for name in envs.names():
        spec = envs.make(name).spec
        sizes = f"{spec.obs_size:>3} obs  {spec.action_size:>2} actions  {spec.episode_length:>5} steps"
        print(f"{name:<18}{sizes}   {envs.ENVS[name].summary}")
    print("\nEnvironments of other libraries (`covey envs LIBRARY` lists them):")
    for prefix, adapter in envs.ADAPTERS.items():
        print(f"{prefix + ':':<18}{adapter.install:<34}{adapter.summary}")


def agents(arguments: list[str]) -> None:
    import jax

    from covey import agents

    require(len(arguments) <= 1, f"`covey agents` takes one agent, not {' '.join(arguments)}.")
    for agent in arguments or agents.REGISTRY:
        entry = agents.entry(agent)
        print(f"{agent}: {entry.summary}")
        for path, value in jax.tree.flatten_with_path(entry.hyper(), is_leaf=lambda x: x is None or x == ())[0]:
            name = jax.tree_util.keystr(path, simple=True, separator=".")
            space = entry.space[name]
            flag = f"--hyper.{name.replace('_', '-')}"
            text = "-" if value in (None, ()) else f"{value:g}"
            print(f"  {flag:<30}{text:<8}  search {space.low:g} to {space.high:g}, {space.scale}")


def presets(arguments: list[str]) -> None:
    from covey.run.presets import PRESETS, PUBLISHED, describe

    require(not arguments, f"`covey presets` takes no arguments, not {' '.join(arguments)}.")
    for key in PRESETS:
        source = f" (published, not tuned here: {PUBLISHED[key].source})" if key in PUBLISHED else ""
        print(f"{key[0]} on {key[1]}: {describe(*key)}{source}")
