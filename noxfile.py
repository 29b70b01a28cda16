"""What a change has to pass, as sessions: ``nox`` runs all of them, ``nox -s lint`` one (https://nox.thea.codes)."""

import nox

nox.options.default_venv_backend = "none"  # the environment that CONTRIBUTING sets up
nox.options.sessions = ["lint", "types", "tests"]


@nox.session
def lint(session: nox.Session) -> None:
    """Ruff: rules and layout."""
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")


@nox.session
def types(session: nox.Session) -> None:
    """Mypy, strict, on the packages."""
    session.run("mypy")


@nox.session
def quick(session: nox.Session) -> None:
    """The tests that need no model and start no process: a minute. Further arguments go to pytest."""
    session.run("pytest", "-m", "not slow", "-x", *session.posargs)


@nox.session
def tests(session: nox.Session) -> None:
    """All tests. Further arguments go to pytest."""
    session.run("pytest", *session.posargs)
