"""Requests reach the loop that a selector wakes, from any thread, once and in order."""

from __future__ import annotations

import selectors
import threading

from openclaw_tasks.gang.mailbox import Mailbox


def test_a_request_wakes_the_loop_and_is_called_there() -> None:
    mailbox = Mailbox()
    called: list[tuple[int, str]] = []
    asker = threading.Thread(
        target=lambda: [
            mailbox.ask(lambda n=number: called.append((n, threading.current_thread().name))) for number in range(100)
        ]
    )
    with selectors.DefaultSelector() as selector:
        selector.register(mailbox, selectors.EVENT_READ)
        assert selector.select(0) == []
        asker.start()
        while len(called) < 100:
            assert selector.select(10.0)
            mailbox.answer()
        asker.join()
        assert selector.select(0) == []
    assert called == [(number, threading.current_thread().name) for number in range(100)]
    mailbox.close()


def test_what_is_asked_of_a_closed_one_is_not_called() -> None:
    mailbox, called = Mailbox(), list[int]()
    mailbox.close()
    mailbox.close()
    mailbox.ask(lambda: called.append(1))
    assert called == []


def test_a_loop_that_does_not_listen_blocks_nobody() -> None:
    mailbox = Mailbox()
    count = [0]

    def request() -> None:
        count[0] += 1

    for _ in range(100_000):  # more than a pipe holds
        mailbox.ask(request)
    while count[0] < 100_000:
        mailbox.answer()
    mailbox.close()
