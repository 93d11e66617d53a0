"""``hashlib`` of bytes that are known."""

import hashlib

import pytest
import torch
from differential import attempt, check
from weft_bytecode_capture import capture


def keyed(x, name):
    key = hashlib.sha256(f"{name}-{x.shape[0]}".encode()).hexdigest()[:8]
    return x * len(key), key


def in_parts(x, name):
    digest = hashlib.new("md5", name.encode(), usedforsecurity=False)
    before = digest.copy()
    for part in (b"a", bytearray(b"b"), memoryview(b"c")):
        digest.update(part)
    facts = digest.name, digest.digest_size, digest.block_size, bool(digest)
    return x + digest.digest_size, digest.digest(), before.hexdigest(), facts


def raising(x, name):
    out = []
    for function in (
        lambda: hashlib.md5("text"),
        lambda: hashlib.sha1().update(),
        lambda: hashlib.sha1(name.encode()).nothing,
        lambda: hashlib.sha512(b"a", usedforsecurity=False).hexdigest(1),
        lambda: hashlib.md5(string=name.encode()).hexdigest(),
    ):
        attempt(out, function)
    return x, out


@pytest.mark.parametrize("function", [keyed, in_parts, raising])
def test_known_bytes(function):
    check(function, [(torch.ones(n), name) for n, name in ((2, "a"), (2, "b"), (3, "a"))])


def test_one_that_outlives_the_graph():
    def program(x, name):
        digest = hashlib.sha1(name.encode())
        digest.update(b"more")
        return x * 2, digest

    result = capture(program)(torch.ones(2), "a")
    assert not result.breaks
    digest = result.result[1]
    digest.update(b"!")
    assert digest.hexdigest() == hashlib.sha1(b"amore!").hexdigest()


def test_in_a_branch_on_data():
    def program(x):
        digest = hashlib.sha1(b"a")
        if x.sum() > 0:
            digest.update(b"b")
            x = x + 1
        return x, digest.hexdigest()

    check(program, [(torch.ones(2),), (-torch.ones(2),)], fullgraph=False)


def test_bytes_of_a_tensor():
    def program(x):
        return x + 1, hashlib.md5(x.numpy().tobytes()).hexdigest()

    check(program, [(torch.ones(2),), (torch.zeros(2),)], fullgraph=False)
