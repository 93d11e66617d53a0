"""Locks that the compiled function makes, beside plain execution."""

import threading
import time

import pytest
import torch
from differential import check, run_graph
from weft_bytecode_capture import compile_frames

X = torch.arange(3.0)


def in_with(x):
    with threading.Lock():
        return x + 1


def nested(x):
    lock = threading.RLock()
    with lock, lock:
        x = x * 2
    return x, isinstance(lock, type(threading.RLock()))


def by_hand(x):
    lock = threading.Lock()
    taken = lock.acquire()
    try:
        inside = lock.locked()
        y = x + 1
    finally:
        lock.release()
    return y, taken, inside, lock.locked(), bool(lock)


def an_error_inside(x):
    lock = threading.Lock()
    try:
        with lock:
            raise ValueError("no")
    except ValueError as error:
        return x + 1, str(error), lock.locked()


class Counter:
    def __init__(self):
        self._lock = threading.Lock()
        self.count = 0

    def add(self):
        with self._lock:
            self.count += 1
        return self.count


def in_an_object(x):
    counter = Counter()
    counter.add()
    return x + counter.add()


@pytest.mark.parametrize("kind", [threading.Lock, threading.RLock])
def test_released_twice(kind):
    def released(x):
        lock = kind()
        with lock:
            y = x + 1
        try:
            lock.release()
        except RuntimeError as error:
            return y, str(error)

    check(released, [(X,), (X,)])


@pytest.mark.parametrize(
    "function", [in_with, nested, by_hand, an_error_inside, in_an_object], ids=lambda f: f.__name__
)
def test_locks_of_the_function(function):
    check(function, [(X,), (X,)])


def broken(x):
    lock = threading.Lock()
    again = threading.RLock()
    with lock, again:
        y = x + 1
        time.sleep(0)
        inside = lock.locked(), lock.acquire(blocking=False)
        again.acquire()
        again.release()
    return y * 2, inside, lock.locked()


def test_a_break_while_locks_are_held():
    check(broken, [(X,), (X,)], fullgraph=False)


def given(x, held):
    lock = threading.Lock()
    same = [lock, lock]
    if held:
        lock.acquire()
    return x + 1, same


@pytest.mark.parametrize("held", [False, True])
def test_locks_that_are_given_back(held):
    compiled = compile_frames(given, run_graph)
    (_, first), (_, second) = compiled(X, held), compiled(X, held)
    assert first[0] is first[1]
    assert first[0] is not second[0]
    assert type(first[0]) is type(threading.Lock())
    assert first[0].locked() is second[0].locked() is held


def conditions(x):
    condition, semaphore, event = threading.Condition(), threading.Semaphore(2), threading.Event()
    out, again, bounded = [], threading.RLock(), threading.BoundedSemaphore(1)
    with condition:
        condition.notify_all()
        out.append(x + 1)
    with semaphore:
        out.append(semaphore._value)
    event.set()
    with again:
        out += [event.is_set(), again._is_owned()]
    lock = threading.Lock()
    out += [again._is_owned(), lock.acquire(False), lock.acquire(blocking=False), lock.locked()]
    try:
        lock._release_save  # noqa: B018
    except AttributeError as error:
        out.append(str(error))
    with bounded:
        pass
    try:
        bounded.release()
    except ValueError as error:
        out.append(str(error))
    return out


def test_conditions_semaphores_and_events():
    check(conditions, [(X,), (X,)], fullgraph=True)
