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


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("no_such_module:net", "there is no module 'no_such_module', neither in this folder"),
        ("no_such_package.nets:net", "there is no module 'no_such_package', neither in this folder"),
        (f"{__name__}:nett", "has no 'nett'; did you mean 'net'"),
        (":net", "write it as module:ATTRIBUTE"),
        (f"{__name__}:", "write it as module:ATTRIBUTE"),
        (__name__, "write it as module:ATTRIBUTE"),
    ],
)
def test_what_cannot_be_imported_is_named(path, says):
    with pytest.raises(UserError, match=f"model {path!r} cannot be imported: .*{says}"):
        import_object(path, "model")


@pytest.mark.parametrize(
    ("name", "code", "says"),
    [
        (
            "failing_at_two",
            "one = 1\nnet = 1 / 0\n",
            r"ZeroDivisionError: division by zero \(.*failing_at_two\.py, line 2\)",
        ),
        (
            "needs_another",
            "import no_such_module\n",
            r"No module named 'no_such_module' \(.*needs_another\.py, line 1\)",
        ),
        ("misspelt", "\n\nnet = = 1\n", r"SyntaxError: invalid syntax \(misspelt\.py, line 3\)"),
        (
            "makes_what_is_asked_for",
            "def __getattr__(name):\n    return 1 / (name == '__path__')\n",
            r"ZeroDivisionError: .*\(.*makes_what_is_asked_for\.py, line 2\)",
        ),
    ],
)
def test_own_code_that_fails_is_named_with_its_line(name, code, says, tmp_path, monkeypatch):
    (tmp_path / f"{name}.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=f"its code fails with .*{says}"):
        import_object(f"{name}:net", "model")


@pytest.mark.parametrize("path", ["failing_package:net", "failing_package.nets:net"])
def test_a_package_whose_own_code_fails_is_named_with_its_line(path, tmp_path, monkeypatch):
    (tmp_path / "failing_package").mkdir()
    (tmp_path / "failing_package" / "__init__.py").write_text("one = 1\nnet = 1 / 0\n")
    (tmp_path / "failing_package" / "nets.py").write_text("net = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    says = r"ZeroDivisionError: division by zero \(.*failing_package/__init__\.py, line 2\)"
    with pytest.raises(UserError, match=f"its code fails with {says}"):
        import_object(path, "model")


def test_what_is_no_model_or_system_is_refused():
    with pytest.raises(UserError, match=r"str, not a torch\.nn\.Module"):
        build(f"{__name__}:not_a_module", (2,), 2)
    with pytest.raises(UserError, match="not coterie"):
        registry.get(f"{__name__}:net")
