"""What bounds memory and time: the budget of uploads, slow bodies, and the pages that are known."""

import asyncio
from contextlib import contextmanager

import pytest
from bombs import blocks, saved
from hypothesis import given
from hypothesis import strategies as st

from aipo.web import http, pictures
from aipo.web.budget import Budget
from aipo.web.decode import MAX_BYTES, decoding_memory
from aipo.web.http import Body, Refusal, announced_length
from aipo.web.jobs import Cores
from aipo.web.pictures import WORKSPACE, Pictures
from aipo.web.visitors import Visitors


class TestBudget:
    @given(
        st.lists(st.tuples(st.integers(0, 100), st.integers(0, 5), st.booleans()), max_size=40),
        st.randoms(use_true_random=False),
    )
    def test_it_holds_for_any_number_at_once(self, requests, random):
        """Each takes its amount, keeps it for some turns of the loop, and may be given up at any moment."""

        async def main():
            budget, held, most = Budget(100), 0, 0
            served = []

            async def ask(number, amount, turns):
                nonlocal held, most
                async with budget.share(amount):
                    held += amount
                    most = max(most, held)
                    try:
                        for _ in range(turns):
                            await asyncio.sleep(0)
                        served.append(number)
                    finally:
                        held -= amount

            tasks = [asyncio.create_task(ask(i, amount, turns)) for i, (amount, turns, _) in enumerate(requests)]
            patient = {i for i, (_, _, given_up) in enumerate(requests) if not given_up}
            for i in set(range(len(tasks))) - patient:
                for _ in range(random.randrange(4)):
                    await asyncio.sleep(0)
                tasks[i].cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            assert most <= budget.total
            assert patient <= set(served)
            assert budget.used == 0

        asyncio.run(main())

    def test_a_large_one_is_not_passed_by_small_ones(self):
        async def main():
            budget, order = Budget(10), []

            async def ask(amount):
                async with budget.share(amount):
                    order.append(amount)
                    await asyncio.sleep(0)

            await asyncio.gather(*(ask(amount) for amount in (6, 9, 1, 2)))
            assert order == [6, 9, 1, 2]

        asyncio.run(main())

    def test_who_waits_too_long_leaves_the_line(self):
        async def main():
            budget = Budget(10)
            async with budget.share(8):
                with pytest.raises(TimeoutError):
                    async with budget.share(5, patience=0.01):
                        pass
                async with budget.share(2):
                    assert budget.used == 10
            assert budget.used == 0

        asyncio.run(main())

    def test_more_than_all_is_an_error(self):
        async def main():
            with pytest.raises(ValueError, match="more than the whole budget"):
                async with Budget(10).share(11):
                    pass

        asyncio.run(main())


def sender(*pieces, clock=None, seconds=0.0):
    """An ASGI `receive` whose pieces come one after the other, each after so many seconds of the clock."""
    waiting = list(pieces)

    async def receive():
        if clock is not None:
            clock[0] += seconds
        if not waiting:
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": waiting.pop(0), "more_body": bool(waiting)}

    return receive


def read(receive, length, *arguments):
    return asyncio.run(Body(receive, length, *arguments).read())


class TestBodies:
    def test_it_arrives_whole(self):
        assert read(sender(b"ab", b"", b"c"), 3) == b"abc"

    @given(st.lists(st.binary(max_size=5), min_size=1, max_size=9), st.integers(0, 40))
    def test_a_part_and_then_the_rest(self, pieces, count):
        async def main():
            body = Body(sender(*pieces), len(whole))
            part = await body.read(count)
            assert whole.startswith(part)
            assert len(part) >= min(count, len(whole))
            assert await body.read() == whole

        whole = b"".join(pieces)
        asyncio.run(main())

    def test_one_that_trickles_is_cut_off(self):
        clock = [0.0]
        receive = sender(*[b"x"] * 1000, clock=clock, seconds=1.0)
        with pytest.raises(Refusal, match="too slowly") as caught:
            read(receive, 20_000_000, lambda: clock[0])
        assert caught.value.status == 408
        assert clock[0] <= http.GRACE + 2

    def test_a_large_one_over_a_slow_line_is_not(self):
        clock = [0.0]
        receive = sender(*[bytes(2 * http.SLOWEST)] * 60, clock=clock, seconds=1.5)
        assert len(read(receive, 120 * http.SLOWEST, lambda: clock[0])) == 120 * http.SLOWEST
        assert clock[0] > 5 * http.GRACE

    def test_one_that_never_comes_is_cut_off(self, monkeypatch):
        monkeypatch.setattr(http, "GRACE", 0.01)

        async def receive():
            await asyncio.Event().wait()

        with pytest.raises(Refusal, match="too slowly"):
            read(receive, 10)

    def test_one_that_ends_early_or_late_is_refused(self):
        with pytest.raises(Refusal, match="ended early"):
            read(sender(), 10)
        with pytest.raises(Refusal, match="longer than it said") as caught:
            read(sender(b"12345", b"678"), 7)
        assert caught.value.status == 413

    @pytest.mark.parametrize(
        ("length", "status"),
        [(None, 411), (b"", 411), (b"many", 411), (b"-1", 411), (b"1e3", 411), (b"9" * 5000, 411), (b"101", 413)],
    )
    def test_lengths_that_are_refused(self, length, status):
        with pytest.raises(Refusal) as caught:
            announced_length([] if length is None else [(b"content-length", length)], 100)
        assert caught.value.status == status

    def test_lengths_that_are_taken(self):
        assert [announced_length([(b"content-length", b"%d" % n)], 100) for n in (0, 12, 100)] == [0, 12, 100]


class Counted(Cores):
    """Remembers how many jobs there were at once."""

    most = 0

    @contextmanager
    def job(self):
        with super().job():
            self.most = max(self.most, self.jobs)
            yield


class TestPictures:
    def take(self, count, content, **budgets):
        """What so many uploads at once are answered with, and how many of them were decoded at a time."""
        cores = Counted(8)
        uploads = Pictures((64, 64), cores)
        for name, budget in budgets.items():
            setattr(uploads, name, Budget(budget))

        async def main():
            takes = [uploads.take(sender(content), len(content)) for _ in range(count)]
            return await asyncio.gather(*takes, return_exceptions=True)

        answers = asyncio.run(main())
        assert uploads.files.used == uploads.decoding.used == 0
        return answers, cores.most

    def test_as_many_are_decoded_at_once_as_their_memory_allows(self):
        content = saved(blocks(200, 200), "PNG")
        weight = decoding_memory(content) + WORKSPACE
        for allowed in (1, 3):
            answers, most = self.take(9, content, decoding=allowed * weight + 1)
            assert len({answer["picture"] for answer in answers}) == 1
            assert most <= allowed

    def test_who_waits_too_long_is_asked_to_come_back(self, monkeypatch):
        monkeypatch.setattr(pictures, "PATIENCE", 0.0)
        content = saved(blocks(200, 200), "PNG")
        answers, _ = self.take(3, content, files=2 * len(content))
        assert [answer.status for answer in answers if isinstance(answer, Refusal)] == [429, 429]

    def test_who_only_announces_a_file_keeps_no_room_from_others(self):
        content = saved(blocks(200, 200), "PNG")

        async def silence():
            await asyncio.Event().wait()

        async def main():
            uploads = Pictures((64, 64), Cores(1))
            uploads.files = Budget(MAX_BYTES * 2)
            silent = [asyncio.create_task(uploads.take(silence, MAX_BYTES)) for _ in range(100)]
            answer = await uploads.take(sender(content), len(content))
            for task in silent:
                task.cancel()
            return answer

        assert "picture" in asyncio.run(main())

    def test_what_is_no_picture_is_refused_and_costs_nothing(self):
        answers, most = self.take(3, b"hello")
        assert all("not a picture" in answer["refused"] for answer in answers)
        assert most == 0


class TestVisitors:
    def test_only_pages_that_are_or_were_open_are_known(self):
        visitors = Visitors(2, forget=print)
        with pytest.raises(Refusal, match="reload") as caught:
            visitors.check("a")
        assert caught.value.status == 403
        with visitors.visit("a"):
            visitors.check("a")
        visitors.check("a")

    def test_a_flood_pushes_out_no_open_page(self):
        forgotten = []
        times = iter(range(10_000))
        visitors = Visitors(3, forgotten.append, lambda: next(times))
        with visitors.visit("honest"):
            for i in range(1000):
                with visitors.visit(f"forged {i}"):
                    visitors.check("honest")
                assert len(visitors) <= 3
            assert forgotten == [f"forged {i}" for i in range(998)]  # whoever left first

    def test_when_all_are_open_one_more_has_to_wait(self):
        visitors = Visitors(2, forget=print)
        with visitors.visit("a"), visitors.visit("b"):
            with pytest.raises(Refusal, match="Too many people") as caught, visitors.visit("c"):
                pass
            assert caught.value.status == 429
        with visitors.visit("c"):
            assert len(visitors) == 2

    def test_a_page_that_still_listens_is_not_forgotten(self):
        forgotten = []
        visitors = Visitors(1, forgotten.append)
        with visitors.visit("a"):
            pass
        with visitors.listen("a"), pytest.raises(Refusal), visitors.visit("b"):
            pass
        with visitors.visit("b"):
            assert forgotten == ["a"]

    def test_a_page_is_open_once_and_listens_once(self):
        visitors = Visitors(2, forget=print)
        with visitors.visit("a"), visitors.listen("a"):
            for again in (visitors.visit, visitors.listen):
                with pytest.raises(Refusal) as caught, again("a"):
                    pass
                assert caught.value.status == 409
        with visitors.visit("a"), visitors.listen("a"):
            pass
