"""A loader over an epoch without end."""

import pytest

from rayingest.errors import ConfigError, EndOfStreamError
from rayingest.plan.protocols import ENDLESS
from rayingest.trainer import Loader
from tests.trainer.fake_source import Plan, Source, xs


class Tail(Source):
    """A source that ends after `there` batches, for now."""

    there = 3

    def get(self):
        if self.at[1] >= self.there:
            raise EndOfStreamError("nothing more")
        return super().get()


def test_every_pass_goes_on_where_the_last_one_ended():
    """Whether the body left the loop or the source ended. There is no other epoch and no length."""
    source = Tail(steps=ENDLESS)
    with Loader(source, Plan(steps=ENDLESS)) as loader:
        assert xs([next(iter(loader))]) == [0]
        assert xs(loader) == [1, 2]
        assert (loader.epoch, loader.step) == (0, 3)
        assert xs(loader) == []
        source.there = 5
        running = iter(loader)
        assert xs(running) == [3, 4]
        assert next(running, None) is None
        assert source.starts == [(0, 0), (0, 3), (0, 3)]
        with pytest.raises(TypeError, match="no len"):
            len(loader)
        with pytest.raises(ConfigError, match="one epoch"):
            loader.set_epoch(0)
        loader.load_state_dict({**loader.state_dict(), "step": 1})
        assert xs(loader) == [1, 2, 3, 4]
