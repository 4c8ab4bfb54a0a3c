"""The command line: one verb per intention, each a thin call into `covey.run`."""

import sys

from covey.cli import catalogue, runs, training
from covey.cli.arguments import asks_for_help, import_plugins
from covey.errors import CoveyError, unknown

USAGE = """\
covey: train continuous-control agents in one compiled JAX program

  covey train AGENT [--env ENV] [options]     train; --help lists every option of that agent
  covey evolve AGENT [--members N] [options]  train a population, and tune its hyper-parameters meanwhile
  covey resume RUN [--steps N] [options]      go on after Ctrl-C, a crash or a kill, or go on longer
  covey eval RUN [--episodes N]               judge the best policy: mean, 95 % interval, per-episode file
  covey plot RUN... [--out FILE.png]          learning curves of one or more runs, PNG and CSV
  covey skills RUN [--out FILE.png]           the map of a run's skills: where each of them leads
  covey plan RUN --goal 3,4 --goal -2,1       steer a run's skills from goal to goal, with no further training
  covey lineage RUN                           the pictures of a population: who copied whom, with which values
  covey replay RUN [--out FILE]               save a run's replay; `covey train AGENT --replay FILE` starts with it
  covey video RUN [--out FILE]                one episode of the best policy as a film: MP4, GIF or, of Brax, HTML
  covey envs [LIBRARY]                        the environments; those of another library, such as brax
  covey check-env ENV                         whether an environment keeps its promises, in words
  covey agents [AGENT]                        the agents, their hyper-parameters, defaults and search space
  covey presets                               the options that are the defaults of an agent on an environment

  --plugin MODULE   import a module first, which registers environments, networks or agents of your own
"""
VERBS = {
    "train": training.train,
    "evolve": training.evolve,
    "resume": training.resume,
    "eval": runs.eval,
    "plot": runs.plot,
    "skills": runs.skills,
    "plan": runs.plan,
    "lineage": runs.lineage,
    "replay": runs.replay,
    "video": runs.video,
    "envs": catalogue.envs,
    "check-env": catalogue.check_env,
    "agents": catalogue.agents,
    "presets": catalogue.presets,
}


def main(arguments: list[str] | None = None) -> int:
    """Runs a command; returns its exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        return _run(import_plugins(list(arguments)))
    except CoveyError as error:
        print(f"covey: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        return 1


def _run(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(USAGE, end="")
        return 0 if arguments else 2
    if arguments[0] == "--version":
        return _version()
    if arguments[0] not in VERBS:
        raise unknown("command", arguments[0], VERBS)
    if arguments[0] in catalogue.HELP and asks_for_help(arguments):
        print(catalogue.HELP[arguments[0]])
        return 0
    from covey.signals import LISTENER

    with LISTENER.listening():
        VERBS[arguments[0]](arguments[1:])
    return 0


def entry() -> None:
    """The `covey` command."""
    sys.exit(main())


def _version() -> int:
    from covey import __version__

    print(__version__)
    return 0
