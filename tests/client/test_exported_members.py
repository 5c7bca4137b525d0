"""The public list is what there is, and nothing of it is protobuf."""

from __future__ import annotations

import subprocess
import sys
from types import ModuleType

import firsttoken
import firsttoken.client


def public_members(module: ModuleType) -> set[str]:
    return {
        name for name in vars(module) if not name.startswith("_") and not isinstance(getattr(module, name), ModuleType)
    }


def test_the_list_is_sorted_and_complete() -> None:
    assert firsttoken.client.__all__ == sorted(public_members(firsttoken.client))
    assert firsttoken.__all__ == firsttoken.client.__all__


def test_every_listed_name_is_the_clients() -> None:
    for name in firsttoken.__all__:
        member = getattr(firsttoken, name)
        assert member is getattr(firsttoken.client, name)
        assert member.__module__.startswith("firsttoken."), name
        assert member.__doc__, name
        assert name in dir(firsttoken)


def test_every_error_is_a_first_token_error() -> None:
    errors = [getattr(firsttoken, name) for name in firsttoken.__all__ if name.endswith("Error")]
    assert len(errors) == 13
    assert all(issubclass(error, firsttoken.FirstTokenError) for error in errors)


def test_an_unknown_name_is_an_attribute_error() -> None:
    assert not hasattr(firsttoken, "Clint")


def test_importing_the_package_loads_no_grpc() -> None:
    code = "import sys, firsttoken; sys.exit('grpc' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
