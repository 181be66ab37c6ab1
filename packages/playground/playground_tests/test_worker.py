"""What a worker replies, and the frames that carry it."""

import io
import json
import struct
import threading
from queue import SimpleQueue

import pytest

from iceform_playground.task import Stopped
from iceform_playground.wire import Kind, frame, read_frame
from iceform_playground.worker import _next_question, reply_to
from playground_tests import chores
from playground_tests.chores import TASKS


def never() -> None:
    """Somebody waits for the answer."""


def stop() -> None:
    raise Stopped


def ask(task, question=None, pulse=never):
    return reply_to(f"{task}\n{json.dumps(question or {})}".encode(), TASKS, pulse)


def test_an_answer_is_json():
    kind, body = ask("add", {"points": [{"x": 0.5, "y": 1.0}], "name": "a\nb"})
    assert (kind, json.loads(body)) == (Kind.ANSWER, {"name": "a\nb", "total": 1.5})


def test_a_pulse_stops_the_work():
    assert ask("wait", {"seconds": 60}, stop) == (Kind.STOPPED, b"")


def test_a_refusal_carries_the_library_s_words():
    kind, body = ask("refuse", {"seconds": 3})
    assert kind is Kind.REFUSAL
    assert body == b"seconds = 3.0 is beyond what can be certified"


def test_a_failure_carries_its_traceback():
    kind, body = ask("fail")
    assert kind is Kind.FAILURE
    assert b"swordfish" in body
    assert b"Traceback" in body


@pytest.mark.parametrize(
    "error",
    [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to")],
    ids=["Python's", "torch's"],
)
def test_memory_that_does_not_suffice_is_told_apart(error, monkeypatch):
    def short(question, pulse):
        raise error

    monkeypatch.setitem(TASKS, "short", chores._task(short, chores.Time, chores.Done))
    assert ask("short") == (Kind.MEMORY, b"")


def test_frames_follow_each_other():
    sent = [(Kind.QUESTION, b"add\n{}"), (Kind.STOP, b""), (Kind.ANSWER, bytes(range(256)) * 300)]
    stream = io.BytesIO(b"".join(frame(*each) for each in sent))
    assert [read_frame(stream) for _ in sent] == sent
    assert read_frame(stream) is None


@pytest.mark.parametrize("kept", [0, 1, struct.calcsize(">cI"), -1])
def test_a_frame_that_breaks_off_is_an_end(kept):
    assert read_frame(io.BytesIO(frame(Kind.ANSWER, b"{}")[:kept])) is None


def test_the_warm_up_goes_on_until_a_question_comes_and_after_it():
    questions, taken = SimpleQueue(), []

    def steps():
        for i in range(4):
            if i == 2:
                questions.put(b"first")
            taken.append(i)
            yield

    warming = steps()
    assert _next_question(questions, warming) == b"first"
    assert taken == [0, 1, 2]
    questions.put(b"second")
    assert _next_question(questions, warming) == b"second"
    assert taken == [0, 1, 2]
    threading.Timer(0.1, questions.put, [b"third"]).start()
    assert _next_question(questions, warming) == b"third"
    assert taken == [0, 1, 2, 3]


def test_a_warm_up_that_fails_is_told_and_left(capsys):
    questions, warming = SimpleQueue(), chores.cold()
    threading.Timer(0.1, questions.put, [b"question"]).start()
    assert _next_question(questions, warming) == b"question"
    assert "no fuel" in capsys.readouterr().err
