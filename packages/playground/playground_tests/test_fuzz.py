"""Questions made up by schemathesis from the description of the server, right and wrong ones."""

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from playground_tests.live import live

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]


@pytest.fixture(scope="module")
def tame():
    with live(tasks="playground_tests.chores:TAME", workers=1) as client:
        yield client


@pytest.fixture(scope="module")
def real():
    with live(
        tasks="iceform_playground.tasks:TASKS",
        warm_up="playground_tests.chores:warm_up",
        catalogue="iceform_playground.tasks:catalogue",
        time_limit=60,  # tables are fitted when they are first asked for
    ) as client:
        yield client


def operations(client):
    schema = schemathesis.openapi.from_url(f"{client.url}/openapi.json")
    found = [each.ok() for each in schema.get_all_operations()]
    assert found
    return found


def ask_all(client, mode, examples, checks):
    """Ask each operation what hypothesis makes up."""
    for operation in operations(client):
        if mode is GenerationMode.NEGATIVE and not operation.body:
            continue

        @settings(
            max_examples=examples,
            deadline=None,
            derandomize=True,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy(generation_mode=mode))
        def ask(case):
            case.call_and_validate(checks=checks)

        ask()


def test_right_questions_are_answered(tame):
    ask_all(tame, GenerationMode.POSITIVE, 40, CHECKS)


def test_wrong_questions_are_refused(tame):
    ask_all(tame, GenerationMode.NEGATIVE, 80, [*CHECKS, negative_data_rejection])


@pytest.mark.parametrize("examples", [6, pytest.param(100, marks=pytest.mark.slow)])
def test_the_playground_s_own_questions_are_answered(real, examples):
    ask_all(real, GenerationMode.POSITIVE, examples, CHECKS)


@pytest.mark.parametrize("examples", [30, pytest.param(300, marks=pytest.mark.slow)])
def test_wrong_questions_to_the_playground_are_refused(real, examples):
    ask_all(real, GenerationMode.NEGATIVE, examples, [*CHECKS, negative_data_rejection])
