"""The README's code runs, and its test command is what `.ci/run` runs."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
MAKE_ENVIRONMENT = "python3 -m venv .venv"


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```$", README, flags=re.MULTILINE | re.DOTALL)


def steps(command):
    """Return the steps of a one-line command as they read inside its own environment."""
    return [step.strip().removeprefix(".venv/bin/") for step in command.split("&&")]


@pytest.mark.parametrize("number", range(len(blocks("python"))))
def test_code_block_runs(number, capsys):
    code = blocks("python")[number]
    exec(compile(code, f"README.md, python block {number}", "exec"), {"__name__": "readme"})
    assert "print" not in code or capsys.readouterr().out


def test_quickstart_is_ten_lines_on_the_first_screen():
    lines = blocks("python")[0].strip().splitlines()
    assert len(lines) <= 10
    assert "from skdp import DPPCA" in lines
    assert README.index("```python") < README.index("```bash") < README.index("\n## ")


def test_two_commands_start_from_nothing():
    commands = [block.strip() for block in blocks("bash")]
    assert len(commands) == 2
    for command in commands:
        assert "\n" not in command
        assert steps(command)[0] == MAKE_ENVIRONMENT
        assert steps(command)[1].startswith("pip install")


def test_main_command_names_an_existing_example():
    program = steps(blocks("bash")[0].strip())[-1].removeprefix("python ")
    assert (ROOT / program).is_file()


def test_ci_runs_the_test_command_and_ends_with_it():
    expected = steps(blocks("bash")[1].strip())[2:]
    assert expected == ["ruff check .", "mypy", "pytest -n auto"]
    lines = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    limits = [re.match(r"limited \d+ (.+)", line) for line in lines]
    assert [limit[1] for limit in limits if limit and limit[1] in expected] == expected
    assert limits[-1][1] == expected[-1]


def test_ci_runs_all_tiers_and_each_step_has_a_limit():
    lines = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    step = re.compile(r"pytest\b|sphinx-build|pip\W+install|mypy$")
    runs = [line for line in lines if step.search(line)]
    runs = [line for line in runs if not line.startswith(("#", "export"))]
    assert len(runs) >= 9 and [line for line in runs if "limited " not in line] == []
    limited = [line.partition("limited ")[2] for line in runs]
    assert any(line.endswith(' pytest -m "deep and not slow"') for line in limited)


def test_it_is_short():
    """Code, and what it prints, is not counted."""
    assert len(re.sub(r"^```.*?^```$", "", README, flags=re.MULTILINE | re.DOTALL).split()) <= 900


def test_the_project_says_where_it_lives():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {"Homepage", "Documentation", "Source", "Issues", "Changelog"} <= set(project["urls"])
