"""``logging`` in captured code: the same records, of the same lines and functions, as in eager."""

# ruff: noqa: G004

import logging

import pytest
import torch
from weft_bytecode_capture import capture

logger = logging.getLogger("weft_tests_log_records")


class Tagged(logging.LoggerAdapter):
    def process(self, msg, kwargs):
        return f"tagged {msg}", kwargs


class Elsewhere(logging.Logger):
    def findCaller(self, stack_info=False, stacklevel=1):
        return "elsewhere", 1, "nobody", None


tagged = Tagged(logging.getLogger("weft_tests_log_records.tagged"), {})
elsewhere = Elsewhere("weft_tests_elsewhere")
logger.getChild("of_child")


def levels(x):
    logger.debug("shape %s", x.shape)
    y = x + 1
    logger.info("info")
    logger.warning("%d rows of %s", x.shape[0], "x")
    logger.log(logging.ERROR, "by name %(a)s", {"a": [1, 2]})
    return y * 2


def helper(x, level):
    logger.warning("from a helper", stacklevel=level)
    return x + 1


def called(x):
    return helper(x, 1) + helper(x, 2)


def in_loop(x):
    for n in range(3):
        logger.info("number %d", n)
    return x + 1


def asked(x):
    if logger.isEnabledFor(logging.DEBUG):
        return x + 1
    return x - 1


def found(x):
    logging.getLogger("weft_tests_log_records").info(f"of {x.shape[0]}", extra={"k": [1]})
    logging.warning("of the root")
    return x + 1


def of_a_child(x):
    logger.getChild("of_child").info("child")
    return x + 1


def adapted(x):
    tagged.info("hello %s", "you")
    return x + 1


def changed_later(x):
    items = [1]
    logger.info("items %s", items)
    items.append(2)
    return x + len(items)


TABLE = {"a": [1]}


def of_a_table_from_outside(x):
    logger.warning("table %s", TABLE)
    TABLE["a"] = [len(TABLE["a"])]
    logger.warning("table %s of %d", TABLE, len(TABLE))
    return x + len(TABLE)


def of_data(x):
    logger.warning(f"sum is {x.sum().item()}")
    logger.warning("sum is %s", x.sum().item())
    return x + 1


def of_a_tensor(x):
    y = x + 1
    logger.warning("sum is %s", y)
    y.add_(1)
    return y


def in_handler(x):
    try:
        raise ValueError("bad")
    except ValueError:
        logger.exception("seen")
    return x + 1


def by_its_own_caller(x):
    elsewhere.warning("hello")
    return x + 1


def of_the_caller(x):
    logger.warning("outside", stacklevel=2)
    return x + 1


IN_ONE_GRAPH = [
    levels,
    called,
    in_loop,
    asked,
    found,
    adapted,
    of_a_child,
    changed_later,
    of_a_table_from_outside,
    of_data,
]
BREAKING = [of_a_tensor, in_handler, by_its_own_caller]


class Keeper(logging.Handler):
    def __init__(self):
        super().__init__()
        self.records = []

    def emit(self, record):
        self.records.append(
            (record.name, record.levelno, record.getMessage(), record.pathname, record.lineno)
            + (record.funcName, record.exc_info is None, getattr(record, "k", None))
        )


def logged(function, level):
    keeper, root = Keeper(), logging.getLogger()
    loggers = [logger, tagged.logger, elsewhere]
    root.addHandler(keeper)
    elsewhere.addHandler(keeper)
    results = []
    try:
        for rows in (2, 2, 3, 4):
            for known in loggers:
                known.setLevel(level if rows < 4 else logging.ERROR)
            results.append(function(torch.ones(rows)))
    finally:
        root.removeHandler(keeper)
        elsewhere.removeHandler(keeper)
        for known in loggers:
            known.setLevel(logging.NOTSET)
    return results, keeper.records


@pytest.mark.parametrize("function", [*IN_ONE_GRAPH, *BREAKING])
@pytest.mark.parametrize("level", [logging.DEBUG, logging.WARNING])
def test_as_eager(function, level) -> None:
    captured = capture(function)

    def run(x):
        return captured(x).result

    mine, plain = logged(run, level), logged(function, level)
    assert all(map(torch.equal, mine[0], plain[0]))
    assert mine[1] == plain[1]


@pytest.mark.parametrize("function", IN_ONE_GRAPH)
def test_no_break(function) -> None:
    assert not capture(function)(torch.ones(2)).breaks


def test_a_disabled_logger_asks_nothing_of_its_arguments() -> None:
    logger.setLevel(logging.ERROR)
    try:
        assert not capture(of_a_tensor)(torch.ones(2)).breaks
    finally:
        logger.setLevel(logging.NOTSET)


def test_what_is_of_the_caller_breaks(caplog) -> None:
    result = capture(of_the_caller)(torch.ones(2))
    assert result.breaks and caplog.messages == ["outside"]


def test_a_level_set_globally_counts(caplog) -> None:
    def messages():
        return [r.getMessage() for r in caplog.records if r.name == logger.name]

    captured = capture(levels)
    captured(torch.ones(2))
    caplog.clear()
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        captured(torch.ones(2))
        assert not messages()
    finally:
        logging.disable(before)
    captured(torch.ones(2))
    assert messages() == ["2 rows of x", "by name [1, 2]"]
