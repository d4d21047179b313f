"""Who computes, who waits, and whose place is free again."""

import pytest
import torch

from aipo.errors import InputError
from aipo.web.jobs import ABANDONED, Cores, Jobs


class Clock:
    """A clock that only moves when it is told to."""

    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def test_a_user_has_one_job():
    jobs = Jobs(2)
    first = jobs.begin("a")
    other = jobs.begin("b")
    second = jobs.begin("a")
    assert first.stop.is_set()
    assert first.gone.is_set()
    assert not second.stop.is_set()
    assert not other.stop.is_set()
    jobs.stop("a")
    jobs.stop("nobody")
    assert second.stop.is_set()
    assert not second.gone.is_set()  # how it ended is still to be told
    assert not other.stop.is_set()


def test_a_job_that_is_over_is_forgotten_but_not_its_successor():
    jobs = Jobs(2)
    first = jobs.begin("a")
    second = jobs.begin("a")
    jobs.end(first)
    assert len(jobs) == 1
    jobs.end(second)
    assert len(jobs) == 0
    jobs.end(second)


def test_more_than_the_limit_are_told_to_come_back():
    jobs = Jobs(2)
    jobs.begin("a")
    other = jobs.begin("b")
    with jobs.listening("a"), jobs.listening("b"):
        with pytest.raises(InputError, match="too many people"):
            jobs.begin("c")
        jobs.begin("a")  # one more of the same user is no more
        jobs.leave("b")
        jobs.leave("nobody")
        assert other.stop.is_set()
        assert not jobs.begin("c").stop.is_set()


def test_the_line_moves_in_order():
    jobs = Jobs(4)
    a, b, c = (jobs.begin(user) for user in "abc")
    with jobs.listening("a"), jobs.listening("b"), jobs.listening("c"):
        assert [jobs.ahead(job) for job in (a, b, c)] == [0, 1, 2]
        jobs.end(a)
        assert [jobs.ahead(job) for job in (b, c)] == [0, 1]
        jobs.leave("b")
        assert jobs.ahead(c) == 0
        again = jobs.begin("a")
        assert jobs.ahead(again) == 1


def test_thirty_who_do_not_listen_keep_nobody_out_nor_waiting():
    jobs = Jobs(24)
    forged = [jobs.begin(f"forger {i}") for i in range(30)]
    assert len(jobs) == 24
    with jobs.listening("honest"):
        honest = jobs.begin("honest")
        assert jobs.ahead(honest) == 0
        assert all(jobs.ahead(job) is None for job in forged)
        for i in range(30):
            jobs.begin(f"another {i}")
        assert not jobs.is_over(honest)
    assert [job.gone.is_set() for job in forged[:7]] == [True] * 7  # the oldest made room


def test_places_that_were_taken_and_left_alone_are_free_again(clock):
    jobs = Jobs(24, clock)
    forged = [jobs.begin(f"forger {i}") for i in range(24)]
    clock.now += ABANDONED
    jobs.begin("honest")
    assert len(jobs) == 1
    assert all(job.stop.is_set() and job.gone.is_set() for job in forged)


def test_a_job_that_somebody_listens_to_keeps_its_place(clock):
    jobs = Jobs(2, clock)
    job = jobs.begin("a")
    with jobs.listening("a"):
        clock.now += 100 * ABANDONED
        assert not jobs.is_over(job)
        assert len(jobs) == 1
    assert not jobs.is_over(job)  # they may come back
    clock.now += ABANDONED
    assert jobs.is_over(job)
    assert job.gone.is_set()
    assert len(jobs) == 0


def test_listening_before_the_job_begins_counts(clock):
    jobs = Jobs(2, clock)
    with jobs.listening("a"):
        job = jobs.begin("a")
        clock.now += 2 * ABANDONED
        assert not jobs.is_over(job)


def test_when_the_server_ends_so_do_all_jobs():
    jobs = Jobs(2)
    begun = [jobs.begin("a"), jobs.begin("b")]
    jobs.close()
    assert len(jobs) == 0
    assert all(job.stop.is_set() for job in begun)


def test_cores_are_shared(monkeypatch):
    given = []
    monkeypatch.setattr(torch, "set_num_threads", given.append)
    cores = Cores(4)
    with cores.job():
        cores.take_share()
        with cores.job(), cores.job():
            cores.take_share()
            with cores.job(), cores.job():
                cores.take_share()
        cores.take_share()
    assert given == [4, 1, 1, 4]
