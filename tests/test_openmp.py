"""How OpenMP's threads wait: set before PyTorch is loaded, whoever loads it, unless the user has said otherwise."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from whale_env.openmp import SETTINGS, SPIN

SHOW = "import os; print(os.environ.get('GOMP_SPINCOUNT'))"


def said(code: str, **given: str) -> str:
    clean = {name: value for name, value in os.environ.items() if name not in SETTINGS}
    done = subprocess.run(
        [sys.executable, "-c", code], env={**clean, **given}, capture_output=True, text=True, check=True, timeout=120
    )
    return done.stdout.strip()


@pytest.mark.parametrize(
    "first", ["whale_env", "harness_sdk", "harness_sdk.models", "optimizers.run.start", "benchmarks.command"]
)
def test_whatever_of_ours_comes_first_sets_it_before_torch(first: str) -> None:
    assert said(f"import sys, {first}; assert 'torch' not in sys.modules; {SHOW}") == SPIN


@pytest.mark.parametrize("name", SETTINGS)
def test_the_users_own_setting_stays(name: str) -> None:
    expected = "7" if name == "GOMP_SPINCOUNT" else "None"
    assert said(f"import whale_env; {SHOW}", **{name: "7" if name == "GOMP_SPINCOUNT" else "passive"}) == expected


def test_what_a_process_starts_inherits_it() -> None:
    assert (
        said(f"import whale_env, subprocess, sys; subprocess.run([sys.executable, '-c', {SHOW!r}], check=True)") == SPIN
    )
