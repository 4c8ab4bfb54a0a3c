"""The command line: one command per intention, each a thin call into the library."""

import sys

from covey.cli import catalogue, export, runs, training
from covey.cli.arguments import asks_for_help, import_plugins
from covey.cli.flags import with_flags
from covey.errors import CoveyError, unknown

USAGE = """\
covey: train continuous-control agents in one compiled JAX program

  covey train AGENT [--env ENV] [options]     train an agent; --help lists every option
  covey evolve AGENT [--members N] [options]  train a population and tune its hyper-parameters
  covey resume RUN [--steps N] [options]      resume after Ctrl-C, a crash or kill -9, or train longer
  covey eval RUN [--episodes N]               evaluate the best policy: mean, 95 % interval, per-episode file
  covey plot RUN... [--out FILE.png]          plot learning curves of one or more runs (PNG and CSV)
  covey video RUN [--out FILE]                record an episode of the best policy (MP4, GIF; HTML for Brax)
  covey skills RUN [--out FILE.png]           plot the trajectories of every skill
  covey plan RUN --goal 3,4 --goal -2,1       reach goals by planning over skills, without further training
  covey lineage RUN                           plot a population: lineage, hyper-parameters, fitness
  covey replay RUN [--out FILE]               save a run's replay for `covey train AGENT --replay FILE`
  covey export RUN [--format onnx]            write the best policy to one file that runs without JAX, with proof
  covey push RUN USER/NAME                    publish the policy and its model card on the Hugging Face Hub
  covey load USER/NAME                        download a published policy
  covey envs [LIBRARY]                        list environments, also those of a library such as brax
  covey check-env ENV                         check an environment against the contract
  covey agents [AGENT]                        list agents, their hyper-parameters, defaults and search ranges
  covey presets                               list presets: the defaults of an agent on an environment

  --plugin MODULE   import a module first, which registers your own environments, networks or agents
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
    "export": export.export,
    "push": export.push,
    "load": export.load,
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
        print(f"covey: {with_flags(error, arguments)}", file=sys.stderr)
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
