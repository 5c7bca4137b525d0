"""The house's import rules hold, and would be noticed if they did not."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def lint_imports(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_every_rule_is_kept() -> None:
    outcome = lint_imports()
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr


def test_a_broken_rule_is_noticed(tmp_path: Path) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text(
        """
[tool.importlinter]
root_packages = ["engines", "server"]
[[tool.importlinter.contracts]]
name = "the server must not know the engines (it does)"
type = "forbidden"
source_modules = ["server"]
forbidden_modules = ["engines"]
"""
    )
    assert lint_imports("--config", str(rules)).returncode == 1
