"""The programs in the documents run."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


def programs():
    for path in (ROOT / "docs/python.md", ROOT / "bindings/python/README.md"):
        for number, program in enumerate(re.findall(r"```python\n(.*?)```", path.read_text(), re.DOTALL)):
            yield pytest.param(program, id=f"{path.name}-{number}")


@pytest.mark.parametrize("program", list(programs()))
def test_program_of_a_document_runs(program, redis_server):
    program = program.replace("redis://127.0.0.1:6379/", redis_server.url)
    exec(compile(program, "document", "exec"), {"__name__": "__main__"})


def test_policies_of_the_tables_are_valid():
    from sluicegate import Policy

    tables = (ROOT / "docs/python.md").read_text().split("## Coming from")[1]
    policies = set(re.findall(r'["`]([a-z-]+:\d+/[^"`]+)["`]', tables))
    assert len(policies) >= 12
    for text in policies:
        assert str(Policy(text)).startswith(text.split(":")[0])
