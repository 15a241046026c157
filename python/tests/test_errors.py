"""Exceptions have the codes of the contract."""

from __future__ import annotations

import json
import pickle

import pytest
from conftest import ROOT

from rolldock import errors

CONTRACT = json.loads((ROOT / "queue" / "openapi.json").read_text())
CODES = CONTRACT["components"]["schemas"]["Error"]["properties"]["error"]["properties"]["code"]["enum"]


def test_each_code_of_the_contract_has_a_class() -> None:
    assert set(errors.BY_CODE) - {"forked"} == set(CODES)


def test_each_class_has_a_docstring_and_a_code_of_its_own() -> None:
    classes = [found for found in vars(errors).values() if isinstance(found, type)]
    codes = [vars(found)["code"] for found in classes if "code" in vars(found)]
    assert sorted(codes) == sorted([*errors.BY_CODE, errors.QueueError.code])
    assert all(error_class.__doc__ for error_class in errors.BY_CODE.values())


@pytest.mark.parametrize("code", CODES)
def test_errors_can_be_pickled(code: str) -> None:
    error = errors.make(code, "client", "what happened", '{"partition": "p"}')
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error) is errors.BY_CODE[code]
    assert (str(again), again.details) == ("what happened", {"partition": "p"})


def test_a_code_without_a_class_gets_the_class_of_its_kind() -> None:
    error = errors.make("new_code", "backpressure", "later", "{}")
    assert type(error) is errors.BackpressureError


def test_policy_errors_can_be_pickled() -> None:
    error = errors.NotYet("not yet", "not_yet", {"version": 3})
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), again.code, again.details) == (errors.NotYet, "not_yet", {"version": 3})
