"""The errors that a user can cause and put right. Each says in one line what is wrong, with the value, and what to do.

A command prints these and nothing else; any other exception is a fault of the code and keeps its traceback. So our own
code raises a bare `ValueError` only where the caller is wrong, not the user. Every class is its builtin kind as well::

    WhaleError
    ├── InputError (ValueError)                 an argument, a file or a text that makes no sense
    │   ├── DatasetError                        whale_env.rows: a data set, or a row of it
    │   │   └── PuzzleFileError ── PuzzleRowError                   whale_env.chess.puzzles
    │   ├── DamagedLogError                     whale_env.json_lines
    │   ├── LineError                           whale_env.chess.verifier: no position, or a line that it does not have
    │   ├── UnparsableReferenceError            whale_env.math.verifier
    │   ├── JudgeError                          whale_env.searchqa.judge
    │   └── ForeignEnvError                     whale_env.core: an environment without tools and tasks
    ├── UnknownEnvError (LookupError)           whale_env.registry
    ├── UnknownTaskError (LookupError)          whale_env.core
    ├── CallError (RuntimeError)                whale_env.core: a call broke what serves it
    ├── MissingPackageError (ModuleNotFoundError)  an optional package that is not installed
    ├── RetrieverError (RuntimeError)           whale_env.retrieval
    ├── RequestError (RuntimeError)             whale_env.http_json: nobody answers, or not usefully
    │   └── JudgeUnavailableError               whale_env.searchqa.judge
    ├── ConfinementError (RuntimeError)         whale_env.sandbox: this kernel cannot confine
    └── ZygoteError, WorkerError (RuntimeError) a helper process that this machine does not let start

Packages above derive theirs from `WhaleError` too. `SealedSplitError` is none of them: who meets it has written code
that must not open the test split.
"""

from __future__ import annotations


class WhaleError(Exception):
    """What a user can cause and put right; its text is one line."""


class InputError(WhaleError, ValueError):
    """What was given makes no sense: an argument, a file, a text."""


class MissingPackageError(WhaleError, ModuleNotFoundError):
    """An optional package is not installed; the text says how to install it."""
