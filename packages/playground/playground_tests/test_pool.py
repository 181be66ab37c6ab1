"""Workers: their number, their queue, and how they end."""

import asyncio
import json
import sys
import tempfile
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from iceform_playground.pool import Pool
from iceform_playground.request_error import RequestError
from iceform_playground.settings import Settings
from playground_tests.live import CHORES, PATIENCE, until

WORKERS, QUEUE = 2, 2
LIMIT, GRACE = 1.0, 0.3
NEVER = 100 * PATIENCE  # no test waits for so long


class Office:
    """A pool in an event loop of its own, asked from the thread of the tests."""

    def __init__(self, **settings):
        self.settings = Settings(**{**CHORES, **settings})
        self.pool = Pool(self.settings)
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever)

    def __enter__(self):
        self._thread.start()
        self.now(self.pool.__aenter__())
        return self

    def __exit__(self, *_):
        self.now(self.pool.__aexit__(None, None, None))
        self.now(self.loop.shutdown_default_executor())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()

    def now(self, work):
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(PATIENCE)

    def ask(self, task, **question):
        """A future of the answer."""
        body = json.dumps(question).encode()
        return asyncio.run_coroutine_threadsafe(self.pool.ask(task, body), self.loop)

    def settled(self):
        self.until(lambda: self.pool.ready == self.settings.workers, "all workers are there")
        self.until(lambda: self.pool.busy == self.pool.waiting == 0, "no worker computes")

    def until(self, true, what):
        until(true, what)

    def pids(self):
        """The process of every worker."""
        self.settled()
        with gates(self.settings.workers) as doors:
            asked = [self.ask("hold", path=str(door)) for door in doors]
            self.until(lambda: self.pool.busy == self.settings.workers, "all workers compute")
            for door in doors:
                door.touch()
            found = {json.loads(each.result(PATIENCE))["pid"] for each in asked}
        assert len(found) == self.settings.workers
        return found

    def renewed(self, before):
        """Processes that took the place of others, once there are any."""
        end = time.monotonic() + PATIENCE
        while not (found := self.pids() - before):
            assert time.monotonic() < end, "no worker was replaced"
        return found


@contextmanager
def gates(count):
    """Files that are not there yet, for questions that wait until they are."""
    with tempfile.TemporaryDirectory() as folder:
        yield [Path(folder) / str(place) for place in range(count)]


@pytest.fixture(scope="module")
def shared():
    """It gives nobody up, however busy the machine is."""
    with Office(workers=WORKERS, queue=QUEUE, time_limit=NEVER, grace=PATIENCE) as office:
        yield office


@pytest.fixture
def office(shared):
    shared.settled()
    return shared


@pytest.fixture
def hasty():
    """It gives questions up soon, and workers never."""
    with Office(workers=1, queue=1, time_limit=LIMIT, grace=PATIENCE) as office:
        office.settled()
        yield office


def problem(asked):
    with pytest.raises(RequestError) as raised:
        asked.result(PATIENCE)
    return raised.value


def test_an_answer_comes_back(office):
    answer = office.ask("add", points=[{"x": 0.25, "y": 0.5}]).result(PATIENCE)
    assert json.loads(answer) == {"name": "sum", "total": 0.75}


def test_what_a_computation_prints_does_not_disturb_its_answer(office):
    assert json.loads(office.ask("talk").result(PATIENCE))["pid"] in office.pids()


def test_a_full_queue_refuses_at_once(office):
    with gates(1) as (door,):
        asked = [office.ask("hold", path=str(door)) for _ in range(WORKERS + QUEUE)]
        office.until(lambda: office.pool.waiting == QUEUE, "the queue is full")
        refused = problem(office.ask("wait", seconds=1))
        assert not any(each.done() for each in asked), "it had to wait"
        assert (refused.kind, refused.retry_after) == ("busy", 1)
        door.touch()
        assert all(json.loads(each.result(PATIENCE))["pid"] for each in asked)


def test_those_who_wait_are_served_in_order(office):
    with gates(WORKERS + QUEUE) as doors:
        asked = []
        for place, door in enumerate(doors):
            asked.append(office.ask("hold", path=str(door)))
            behind = max(0, place + 1 - WORKERS)
            office.until(lambda behind=behind: office.pool.waiting == behind, "it has its place")
            office.until(lambda n=place + 1 - behind: office.pool.busy == n, "or computes")
        for place in range(QUEUE):
            doors[place].touch()  # a worker is free, and the first in the line has it
            office.until(lambda left=QUEUE - 1 - place: office.pool.waiting == left, "one less")
            first = asked[WORKERS + place]
            doors[WORKERS + place].touch()
            assert first.result(PATIENCE)  # which nobody but who runs can answer
            assert not any(each.done() for each in asked[WORKERS + place + 1 :])
        for door in doors:
            door.touch()
        assert all(each.result(PATIENCE) for each in asked)


def test_the_time_limit_frees_the_worker_without_killing_it(hasty):
    before = hasty.pids()
    with gates(1) as (door,):
        start = time.monotonic()
        late = problem(hasty.ask("hold", path=str(door)))  # which never opens
        assert late.kind == "late"
        assert f"{LIMIT:g} s" in str(late)
        assert time.monotonic() - start >= LIMIT
    assert hasty.pids() == before


def test_time_in_the_queue_counts(hasty):
    with gates(1) as (door,):
        busy = hasty.ask("stay", path=str(door))
        hasty.until(lambda: hasty.pool.busy == 1, "the worker computes")
        assert problem(hasty.ask("wait", seconds=0)).kind == "late"  # though it never began
        assert problem(busy).kind == "late"
        door.touch()


def test_who_leaves_frees_the_worker_without_killing_it(office):
    before = office.pids()
    with gates(1) as (door,):
        asked = [office.ask("hold", path=str(door)) for _ in range(WORKERS)]
        office.until(lambda: office.pool.busy == WORKERS, "all workers compute")
        for each in asked:
            each.cancel()
        assert office.pids() == before


def test_who_leaves_the_queue_frees_the_place(office):
    with gates(1) as (door,):
        busy = [office.ask("hold", path=str(door)) for _ in range(WORKERS)]
        office.until(lambda: office.pool.busy == WORKERS, "all workers compute")
        behind = [office.ask("wait") for _ in range(QUEUE)]
        office.until(lambda: office.pool.waiting == QUEUE, "the queue is full")
        behind[0].cancel()
        office.until(lambda: office.pool.waiting == QUEUE - 1, "a place is free")
        taken = office.ask("wait")
        door.touch()
        assert all(each.result(PATIENCE) for each in (*busy, *behind[1:], taken))


def test_a_worker_that_will_not_stop_is_killed_and_replaced():
    with Office(workers=1, queue=1, time_limit=NEVER, grace=GRACE) as office, gates(1) as (door,):
        before = office.pids()
        asked = office.ask("stay", path=str(door))  # which never opens
        office.until(lambda: office.pool.busy == 1, "the worker computes")
        asked.cancel()
        assert not office.pids() & before


def test_a_worker_that_dies_is_replaced_and_its_question_answered(office, caplog):
    before = office.pids()
    assert problem(office.ask("crash")).kind == "crashed"
    assert len(office.renewed(before)) == 1
    assert "a worker died while it answered crash" in caplog.text


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux counts mappings in RLIMIT_DATA")
def test_memory_is_limited(office):
    before = office.pids()
    short = problem(office.ask("hoard"))
    assert short.kind == "memory"
    assert "2.0 GiB" in str(short)
    assert len(office.renewed(before)) == 1


def test_a_refusal_reaches_whoever_asked(office):
    refused = problem(office.ask("refuse", seconds=2))
    assert refused.kind == "refused"
    assert str(refused) == "seconds = 2.0 is beyond what can be certified"


def test_a_failure_reaches_the_log_alone(office, caplog):
    failed = problem(office.ask("fail"))
    assert failed.kind == "internal"
    assert "swordfish" not in str(failed)
    assert "RuntimeError: the password is swordfish" in caplog.text


def test_a_worker_that_is_given_to_somebody_who_just_left_is_not_lost():
    class Idler:
        alive = True

    async def meet():
        pool, worker = Pool(Settings(**CHORES)), Idler()
        leaving = asyncio.create_task(pool._next_worker())
        await asyncio.sleep(0)
        pool._free(worker)
        leaving.cancel()
        await asyncio.wait({leaving})
        assert leaving.cancelled()
        return await pool._next_worker() is worker

    assert asyncio.run(meet())


def test_workers_that_do_not_start_are_tried_again_after_a_pause(monkeypatch, caplog):
    monkeypatch.setattr(sys, "executable", "false")
    monkeypatch.setattr("iceform_playground.pool._FIRST_PAUSE", 0.01)
    with Office(workers=1, queue=0) as office:
        office.until(lambda: caplog.text.count("ended before it was ready") >= 3, "three tries")
        assert office.pool.ready == office.pool.busy == 0
        assert problem(office.ask("add")).kind == "busy"
    assert "starts in 0.04 s" in caplog.text


def test_where_no_worker_is_ready_nobody_is_told_to_ask_for_less():
    pool = Pool(Settings(time_limit=0.05, **CHORES))  # none was started
    with pytest.raises(RequestError) as refused:
        asyncio.run(pool.ask("add", b"{}"))
    assert refused.value.kind == "busy"
    assert refused.value.retry_after
    assert "less" not in str(refused.value)
