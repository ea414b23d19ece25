"""Type checkers find the first mistakes."""

import os
import subprocess
import sys
from pathlib import Path

import sluicegate

PROGRAM = '''
from sluicegate import Limiter, aio
from sluicegate.ext.openai import Budget

Limiter()  # error
Limiter("redis://127.0.0.1/")  # error
Limiter.connect("redis://127.0.0.1/", timout=1)  # error
aio.Limiter.connect("redis://127.0.0.1/", timout=1)  # error
Limiter.connect("redis://127.0.0.1/", timeout=1, key_prefix="app:")
with Budget(Limiter.in_memory(), requests="gcra:1/1s", tokens="gcra:9/1s").call(1) as call:
    call.uesd(3)  # error
    call.used(3)


async def main() -> None:
    limiter = aio.Limiter.in_memory()
    limiter.take("user7", "gcra:1/1s")  # error
    print((await limiter.take("user7", "gcra:1/1s")).remaining)
    async with Budget(limiter, requests="gcra:1/1s", tokens="gcra:9/1s").call(1) as call:
        call.uesd(3)  # error
'''


def test_mypy_finds_misspelled_names_and_forgotten_awaits(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    path = str(Path(sluicegate.__file__).parents[1])
    # mypy refuses a path of installed packages, where it looks anyway.
    path = "" if "site-packages" in path else path
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache"), str(program)]
    found = subprocess.run(command, cwd=tmp_path, env={**os.environ, "MYPYPATH": path}, capture_output=True, text=True).stdout
    lines = {int(line.split(":")[1]) for line in found.splitlines() if ": error:" in line and line.startswith(program.name)}
    expected = {number for number, line in enumerate(PROGRAM.splitlines(), 1) if line.endswith("# error")}
    assert lines == expected, found
