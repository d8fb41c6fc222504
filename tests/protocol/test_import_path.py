"""A model and a system of one's own are named module:ATTRIBUTE."""

import pytest
from torch import nn

from coterie.protocol.errors import UserError
from coterie.protocol.import_path import import_object
from coterie.runs import registry
from coterie.training.models import build


def net(input_shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(input_shape[0], classes))


def not_a_module(input_shape, classes):
    return "a string"


def test_a_factory_of_ones_own_makes_the_model():
    assert build(f"{__name__}:net", (7,), 3).spec.size == 7 * 3 + 3


def test_a_factory_in_the_current_folder_is_found(tmp_path, monkeypatch):
    (tmp_path / "my_nets_of_this_test.py").write_text("from torch import nn\nnet = lambda s, c: nn.Linear(s[0], c)\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", ["/nowhere"])
    assert build("my_nets_of_this_test:net", (2,), 2).spec.size == 6


@pytest.mark.parametrize("path", ["no_such_module:net", f"{__name__}:missing", ":net", f"{__name__}:"])
def test_what_cannot_be_imported_is_named(path):
    with pytest.raises(UserError, match="module:ATTRIBUTE"):
        import_object(path, "model")


def test_what_is_no_model_or_system_is_refused():
    with pytest.raises(UserError, match=r"str, not a torch\.nn\.Module"):
        build(f"{__name__}:not_a_module", (2,), 2)
    with pytest.raises(UserError, match="not coterie"):
        registry.get(f"{__name__}:net")
