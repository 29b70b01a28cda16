"""The agent-harness SDK: write a `Harness`, load it, roll it out, keep the trajectories.

Start with `harness_sdk.harness` (what a harness is) and `harness_sdk.rollout` (the loop that runs it). Policies are in
`harness_sdk.policies`. What a user can cause is an error of `whale_env.errors`' tree::

    WhaleError
    ├── InputError ── HarnessLoadError          no such harness, or one that does not validate
    ├── HarnessError                            a hook raised, hung, or returned what it must not
    ├── ModelNotFoundError (LookupError)        harness_sdk.models
    └── PolicyError, PromptTooLongError         harness_sdk.policies: the backend failed; a prompt does not fit
"""

from harness_sdk import toolcalls
from harness_sdk.harness import Harness, Tools
from harness_sdk.loader import HarnessLoadError, LoadedHarness, load, load_source
from harness_sdk.policies import ScriptedPolicy
from harness_sdk.randomness import seeded
from harness_sdk.rollout import Job, RolloutConfig, jobs_for, rollout
from harness_sdk.sync import rollout_sync
from harness_sdk.trajectory import Trajectory, read_jsonl
from harness_sdk.types import Completion, Episode, Message, ParseFailure, StepResult, ToolSchema, Turn
from harness_sdk.validator import validate
from whale_env.types import Observation, Task, ToolCall, ToolSpec

__all__ = [
    "Completion",
    "Episode",
    "Harness",
    "HarnessLoadError",
    "Job",
    "LoadedHarness",
    "Message",
    "Observation",
    "ParseFailure",
    "RolloutConfig",
    "ScriptedPolicy",
    "StepResult",
    "Task",
    "ToolCall",
    "ToolSchema",
    "ToolSpec",
    "Tools",
    "Trajectory",
    "Turn",
    "jobs_for",
    "load",
    "load_source",
    "read_jsonl",
    "rollout",
    "rollout_sync",
    "seeded",
    "toolcalls",
    "validate",
]
