"""Has processes that a test starts write what they reach: `tests.coverage.probes`, without pytest."""

import os

if "WEFT_COVERAGE" in os.environ and "PYTEST_CURRENT_TEST" in os.environ:
    import tests.coverage.probes  # noqa: F401
