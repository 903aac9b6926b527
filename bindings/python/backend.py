"""Builds the wheel: maturin does, once the command `gleaner` is built, which the wheel holds as well.

A source distribution holds the native half and the libraries below it, and not the command.
"""

import os
import shutil
import subprocess

import maturin
from maturin import *  # noqa: F403

_HERE = os.path.dirname(os.path.abspath(__file__))
_ROOT = os.path.dirname(os.path.dirname(_HERE))
_SCRIPTS = os.path.join(_HERE, "gleaner.data", "scripts")
# maturin asks for it as soon as pip asks for the metadata.
os.makedirs(_SCRIPTS, exist_ok=True)


def _build_command():
    """Puts the command where maturin finds it. Without the rest of the repository there is none."""
    if not os.path.exists(os.path.join(_ROOT, "cli", "Cargo.toml")):
        return
    # The trainer of `gleaner train` is a demonstration on candle, which takes longer to build than all the rest.
    command = ["cargo", "build", "--release", "--package", "gleaner-cli", "--no-default-features"]
    subprocess.run(command, cwd=_ROOT, check=True)
    target = os.environ.get("CARGO_TARGET_DIR", os.path.join(_ROOT, "target"))
    packed = os.path.join(_SCRIPTS, "gleaner")
    shutil.copy2(os.path.join(target, "release", "gleaner"), packed)
    if shutil.which("strip"):
        # What debuggers want to know is most of it.
        subprocess.run(["strip", packed], check=True)


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    """What pip calls."""
    _build_command()
    return maturin.build_wheel(wheel_directory, config_settings, metadata_directory)


def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    """What `pip install --editable` calls."""
    _build_command()
    return maturin.build_editable(wheel_directory, config_settings, metadata_directory)
