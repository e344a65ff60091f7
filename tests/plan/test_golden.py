"""Order version 1, pinned."""

import json

from tests.plan import golden


def test_the_order_is_the_golden_order() -> None:
    """Any change of the golden file is a new order version: saved states of this one would go on with other samples.

    A new version gets a new number in `rayingest.plan.order`, a new file beside this one, and an answer to states of
    the old. Only what the file lacks may be added to it.
    """
    pinned, computed = json.loads(golden.FILE.read_text()), golden.compute()
    assert pinned.keys() == computed.keys()
    for name, value in pinned.items():
        assert computed[name] == value, name
