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


def test_each_class_has_a_text() -> None:
    for code, kind in errors.BY_CODE.items():
        assert kind.__doc__, code
        assert kind.code == code


@pytest.mark.parametrize("code", CODES)
def test_errors_can_be_pickled(code: str) -> None:
    error = errors.make(code, "client", "what happened", '{"partition": "p"}')
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error) is errors.BY_CODE[code]
    assert (str(again), again.details) == ("what happened", {"partition": "p"})


def test_a_code_of_a_later_version_becomes_its_class() -> None:
    error = errors.make("new_code", "backpressure", "later", "{}")
    assert type(error) is errors.BackpressureError


def test_policy_errors_can_be_pickled() -> None:
    error = errors.NotYet("not yet", "not_yet", {"version": 3})
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), again.code, again.details) == (errors.NotYet, "not_yet", {"version": 3})
