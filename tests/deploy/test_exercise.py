"""A study of hospitals from their files to its second run, with documented commands alone: each a process of its own.

Two test it: two hospitals beside the server, and, with ``-m long``, five whose way out is a proxy and a slow line.
"""

from __future__ import annotations

import csv
import json
import shlex
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from forked import fork, is_open
from proxy import Proxy
from sklearn.metrics import roc_auc_score

import coterie.data
from benchmarks.lines import Line
from coterie.data.form import SampleForm, read_data
from coterie.data.preparing import read_schema
from coterie.deploy.home import plan_of, read_home
from coterie.deploy.status import RunStatus
from coterie.operate.nats_server import free_port
from coterie.operate.own_model import own_model
from coterie.operate.watching import read_status
from coterie.runs.config import RunConfig
from coterie.runs.experiment import build
from coterie.runs.finished import load_result

pytest.importorskip("nats", reason="the engine is an extra, deploy")

HEART = Path(coterie.data.__file__).with_name("heart")
NAMES = ("cleveland", "hungarian", "switzerland", "va", "parma")
LATE = "ulm"
WAIT_S = 240.0
RUN = """
system = "fedavg"
rounds = 3
metrics = "auroc"
model = "linear"

[settings]
batch_size = 10000
slowest = 1.0
"""
"""With all samples in one batch no party's own seed moves its model. All train all epochs, as the fastest client."""
SIMULATION = (
    "--data hospitals --schema schema.toml --rounds 3 --model linear --set batch_size=10000 --set slowest=1 "
    "--precision fp32"
)
OPERATOR, NOBODY = "operator", "nobody"
Step = tuple[str, str]
"""Who gives a command, and the command without ``coterie``, as a shell takes it. One that ends in & goes on beside."""


# -- the commands, in the order of the guide --


def prepares(server: str) -> Iterator[Step]:
    yield OPERATOR, "prepare propose sample.csv --label disease --positive ill --categories cp,thal --out schema.toml"
    yield (
        OPERATOR,
        f"deploy init study --config run.toml --members members.toml --server {server} --schema schema.toml "
        "--scores local_auroc,samples --grace 5",
    )
    yield OPERATOR, "deploy server study --start &"


def asks(name: str) -> Iterator[Step]:
    yield OPERATOR, f"deploy invite study {name} > {name}.token"
    yield name, f"deploy join {name}.token --data hospitals/{name}.csv --home homes/{name} --report local_auroc,samples"
    yield OPERATOR, f"deploy approve study {name}.request"


def begins(name: str) -> Iterator[Step]:
    yield name, f"deploy join study/{name}.cert --home homes/{name}"
    yield name, f"deploy party --home homes/{name} --stay &"


# -- who gives them --


def ended(made: Any) -> int | None:
    """The exit code. What does not end is killed."""
    made.join(WAIT_S)
    if made.exitcode is None:
        made.kill()
        made.join()
    return int(made.exitcode)


class Study:
    """A folder, in which each command is a process. steps: all that were given.  env: of the hospitals' processes."""

    def __init__(self, at: Path, **env: str) -> None:
        self.at, self.env, self.steps = at, env, list[Step]()
        self.beside: dict[str, Any] = {}

    def do(self, steps: Iterable[Step]) -> None:
        for step in steps:
            self.steps.append(step)
            self._give(*step)

    def _give(self, who: str, command: str) -> None:
        words, _, to = command.removesuffix(" &").partition(" > ")
        out, err = (self.at / f"{len(self.steps)}.{kind}" for kind in ("out", "err"))
        env = self.env if who != OPERATOR else {}
        made = fork(shlex.split(words), self.at / to if to else out, err, self.at, **env)
        if command.endswith(" &"):
            self.beside[words] = made
        else:
            assert ended(made) == 0, f"{who}: coterie {words}: {err.read_text()}"

    def count(self, who: str) -> int:
        return sum(one == who for one, _ in self.steps)

    def status(self, folder: str = "study") -> RunStatus | None:
        place = self.at / folder / "run"
        return read_status(place) if (place / "status.json").exists() else None

    def home(self, name: str) -> Path:
        return self.at / "homes" / name

    def until(self, true: Callable[[], bool], what: str) -> None:
        end = time.monotonic() + WAIT_S
        while not true():
            assert time.monotonic() < end, (what, [path.read_text() for path in self.at.glob("*.err")])
            time.sleep(0.1)

    def stop(self) -> None:
        for one in reversed(self.beside.values()):
            one.terminate()
        for one in self.beside.values():
            ended(one)


@contextmanager
def study(at: Path, **env: str) -> Iterator[Study]:
    made = Study(at, **env)
    try:
        yield made
    finally:
        made.stop()


def write_files(at: Path, names: Sequence[str]) -> None:
    """Each hospital's table with gaps and text, what the operator may tell of such tables, and the two TOML files."""
    tables = {path.stem: list(csv.DictReader(path.open())) for path in HEART.glob("*.csv")}
    for row in chain(*tables.values()):
        row["sex"] = {"1": "male", "0": "female"}[row["sex"]]
        row["disease"] = {"1": "ill", "0": "well"}[row["disease"]]
    tables["parma"], tables[LATE] = tables["cleveland"][1::3], tables["cleveland"][2::3]
    tables["cleveland"] = tables["cleveland"][::3]
    (at / "hospitals").mkdir()
    published = [row for table in tables.values() for row in table]
    for path, rows in [(at / "sample.csv", published)] + [(at / "hospitals" / f"{n}.csv", tables[n]) for n in names]:
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, rows[0])
            writer.writeheader()
            writer.writerows(rows)
    (at / "run.toml").write_text(RUN)
    (at / "members.toml").write_text('[[member]]\nrole = "server"\nhost = "hub.example.org"\n')
    for name in names:
        named(at / "members.toml", name)


def named(members: Path, name: str) -> None:
    with members.open("a") as file:
        file.write(f'\n[[member]]\nname = "{name}"\nrole = "client"\n')


# -- what is looked at --


def first_run(made: Study, server: str, names: Sequence[str]) -> None:
    """From the files to the models, with the fewest commands of the guide."""
    write_files(made.at, names)
    made.do(prepares(server))
    port = int(server.rsplit(":", 1)[1])
    made.until(lambda: is_open(port), "the server")
    for name in names:
        made.do(asks(name))
        made.do(begins(name))
    made.do([(OPERATOR, "deploy hub study")])
    assert made.count(OPERATOR) == 4 + 2 * len(names) <= 14
    assert {made.count(name) for name in names} == {3}
    scored(made, names, rounds=3)
    same_samples_as_a_simulation(made, names)
    same_models_as_a_simulation(made, names)
    made.do([(name, f"prepare check schema.toml hospitals/{name}.csv") for name in names])  # as each `join` has done


def scored(made: Study, names: Sequence[str], rounds: int, folder: str = "study") -> None:
    """All have one model, and the operator has the AUROC of each, which scikit-learn finds in its home, too."""
    for name in names:
        made.until(lambda name=name: own_model(made.home(name))[1] == rounds, f"the model of {name}")
    models = [own_model(made.home(name))[0].tensors[0] for name in names]
    for one in models[1:]:
        assert all(np.array_equal(one[key], models[0][key]) for key in models[0])
    each = json.loads((made.at / folder / "run" / "clients.json").read_text())
    weight, bias = (np.asarray(part) for part in models[0].values())
    for place, name in enumerate(each["clients"]):
        data = np.load(made.home(str(name)) / "data.npz")
        outputs = data["x_test"] @ weight.T + bias
        found = roc_auc_score(data["y_test"], outputs[:, 1] - outputs[:, 0])
        assert each["local_auroc"][place] == pytest.approx(found, abs=1e-6)
    assert sorted(map(str, each["clients"])) == sorted(names)


def same_samples_as_a_simulation(made: Study, names: Sequence[str]) -> None:
    schema = made.at / "schema.toml"
    experiment = build(RunConfig("fedavg", data=str(made.at / "hospitals"), schema=str(schema)))
    for place, name in enumerate(sorted(names)):
        one, kept = experiment.data[f"client/{place}"], np.load(made.home(name) / "data.npz")
        np.testing.assert_array_equal(kept["x"], one.x.numpy())
        np.testing.assert_array_equal(kept["y"], one.y.numpy())
        np.testing.assert_array_equal(kept["x_test"], one.test_set.x[one.test].numpy())
        applied = read_data(made.at / "hospitals" / f"{name}.csv", SampleForm.of(read_schema(schema)))
        np.testing.assert_array_equal(kept["y_test"], applied.y_test)
    experiment.close()


def same_models_as_a_simulation(made: Study, names: Sequence[str]) -> None:
    """Up to rounding, which follows from the order of samples and clients."""
    made.do([(NOBODY, f"run fedavg {SIMULATION} --quiet --out simulated")])
    simulated = load_result(made.at / "simulated").model(names[0]).state_dict()
    ours = own_model(made.home(names[0]))[0].tensors[0]
    for one, other in zip(ours.values(), simulated.values(), strict=True):
        np.testing.assert_allclose(one.numpy(), other.numpy(), atol=1e-5)


def same_digest_in_a_rehearsal(made: Study) -> None:
    made.do([(NOBODY, f"deploy try rehearsed --system fedavg {SIMULATION} --quiet")])
    rehearsed, simulated = (load_result(made.at / place) for place in ("rehearsed/run", "simulated"))
    assert rehearsed.summary["models_sha256"] == simulated.rounds[-1]["models_sha256"]


def test_two_hospitals_come_from_their_files_to_a_model(tmp_path: Path) -> None:
    with study(tmp_path) as made:
        first_run(made, f"nats://127.0.0.1:{free_port()}", NAMES[:2])


# -- with all that happens to a study --


def own_address() -> str:
    """Of this machine, and not the loopback one, to which nobody goes through a proxy."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        try:
            one.connect(("192.0.2.1", 9))
            return str(one.getsockname()[0])
        except OSError:
            pytest.skip("this machine has no address but the loopback one")


def free_443() -> None:
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            one.bind(("0.0.0.0", 443))
        except OSError as error:
            pytest.skip(f"no server can listen at port 443 here: {error}")


def second_run(made: Study) -> None:
    """A sixth hospital joins, and all go on from their models. The hub leads beside."""
    write_late(made.at)
    made.do(asks(LATE))
    before = len(made.steps)
    made.do([(OPERATOR, "deploy start study --rounds 60 --begin-from-models")])
    made.do(begins(LATE))
    made.do([(OPERATOR, "deploy hub study &")])
    for name in NAMES:
        made.until(lambda name=name: plan_of(read_home(made.home(name))).run == 2, f"the second plan at {name}")
        made.do([(name, f"deploy agree --home homes/{name}")])
    given = made.steps[before:]
    assert sum(who == OPERATOR for who, _ in given) == 2
    assert all(sum(who == name for who, _ in given) == 1 for name in NAMES)
    assert made.count(LATE) == 3


def write_late(at: Path) -> None:
    rows = list(csv.reader((at / "sample.csv").open()))
    with (at / "hospitals" / f"{LATE}.csv").open("w", newline="") as file:
        csv.writer(file).writerows([rows[0], *rows[1::7]])
    named(at / "study" / "members.toml", LATE)


def done(made: Study, folder: str, run: int) -> int:
    found: Any = made.status(folder)
    return found.done if found is not None and found.run == run else 0


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.filterwarnings("ignore:.*every cell is empty")  # of Switzerland
def test_five_hospitals_behind_a_proxy_and_a_slow_line(tmp_path: Path) -> None:
    free_443()
    host = own_address()
    with Line(443, 2.0, 0.05) as line:
        proxy = Proxy(host, int(line.url.rsplit(":", 1)[1]))
        try:
            with study(tmp_path, HTTPS_PROXY=f"http://{proxy.address}") as made:
                first_run(made, f"nats://{host}:443", NAMES)
                same_digest_in_a_rehearsal(made)
                second_run(made)
                that_is_renewed_and_restored(made)
        finally:
            proxy.close()
        assert len(proxy.said) >= len(NAMES)
        assert min(line.up, line.down) > 100_000


def that_is_renewed_and_restored(made: Study) -> None:
    """Certificates are renewed, one hospital is put out, and the hub is killed and put back, while the run goes on."""
    left = [name for name in (*NAMES, LATE) if name != "parma"]
    earlier = {name: read_home(made.home(name)).certificate.read_bytes() for name in left}
    made.until(lambda: done(made, "study", 2) >= 2, "two rounds")
    made.do([(OPERATOR, "deploy renew study --all"), (OPERATOR, "deploy revoke study parma")])
    assert ended(made.beside.pop("deploy party --home homes/parma --stay")) == 2
    at = done(made, "study", 2)
    made.until(lambda: done(made, "study", 2) > at + 1, "rounds without parma")
    made.do([(OPERATOR, "deploy backup study --out study.tgz")])
    at = done(made, "study", 2)
    made.until(lambda: done(made, "study", 2) > at + 1, "rounds after the backup")
    hub = made.beside.pop("deploy hub study")
    hub.kill()
    hub.join()
    assert made.status().phase == "round", "the run was to go on"  # type: ignore[union-attr]
    made.do([(OPERATOR, "deploy restore study.tgz restored"), (OPERATOR, "deploy hub restored")])
    status: Any = made.status("restored")
    assert (status.phase, status.run, status.done) == ("ended", 2, 60)
    assert 1 <= status.skipped <= 2
    scored(made, left, rounds=60, folder="restored")
    for name in left:
        assert read_home(made.home(name)).certificate.read_bytes() != earlier[name]
    made.do([(name, f"deploy doctor homes/{name}") for name in left])  # ends with code 1 if it finds a problem
