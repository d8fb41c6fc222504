"""``coterie prepare``, and what a schema does in a run, in predictions, and between machines."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path

import numpy as np
import pytest
from command import Command

import coterie.data
from coterie.deploy.built_party import build_party
from coterie.deploy.home import read_home
from coterie.deploy.store import FileStore, Kept, pack
from coterie.runs import load, load_exported

HEART = Path(coterie.data.__file__).with_name("heart")
FILES = [*map(str, sorted(HEART.iterdir()))]
PROPOSE = ["prepare", "propose", *FILES, "--label", "disease", "--categories", "cp,restecg,slope,thal"]


def patients(name: str, rows: int = 40, bad: str = "") -> None:
    rng, lines = np.random.default_rng(len(name)), []
    for i in range(rows):
        age = rng.integers(20, 90)
        lines.append(f"{name}{i},{age},{'fm'[i % 2]},{'ill' if age > 55 else 'well'}\n")
    Path("hospitals").mkdir(exist_ok=True)
    Path("hospitals", f"{name}.csv").write_text(f"patient,age,sex,outcome\n{''.join(lines)}{bad}")


@pytest.fixture
def schema(cli: Command) -> str:
    """A schema of two hospitals in the current folder."""
    for name in ("north", "east"):
        patients(name)
    files = ["hospitals/north.csv", "hospitals/east.csv"]
    ended = cli("prepare", "propose", *files, "--label", "outcome", "--positive", "ill", "--out", "schema.toml")
    assert ended.code == 0, ended.err
    return "schema.toml"


def test_a_proposal_fits_the_files_that_it_is_from(cli: Command) -> None:
    ended = cli(*PROPOSE, "--out", "heart.toml")
    assert ended.code == 0, ended.err
    assert "column 'chol': every cell is empty" in ended.out
    ended = cli("prepare", "check", "heart.toml", *FILES)
    assert ended.code == 0, ended.out
    assert ended.out.splitlines()[-1] == "4 files: ready"
    assert cli(*PROPOSE, "--out", "heart.toml").code == 2  # it is there already


def test_all_findings_of_all_files_are_shown_and_end_with_1(cli: Command, schema: str) -> None:
    patients("south", bad="s,old,x,ill\n")
    ended = cli("prepare", "check", schema, "hospitals")
    assert (ended.code, "hospitals is a folder: name the files in it, such as hospitals/*.csv" in ended.out) == (
        1,
        True,
    )
    ended = cli("prepare", "check", schema, "hospitals/north.csv", "hospitals/south.csv", "absent.csv")
    assert ended.code == 1
    *found, last = ended.out.splitlines()
    assert [line.split(":")[0] for line in found] == [
        "fault   hospitals/south.csv, column 'age', line 42",
        "fault   hospitals/south.csv, column 'sex', line 42",
        "fault   absent.csv cannot be read as a csv file",
    ]
    assert last == "3 files: 3 faults"


@pytest.mark.usefixtures("figures")
def test_a_run_by_a_schema_predicts_with_ids_and_explains_itself(cli: Command, schema: str) -> None:
    words = [
        "--data",
        "hospitals",
        "--schema",
        schema,
        "--model",
        "linear",
        "--rounds",
        "5",
        "--metrics",
        "auroc,brier",
    ]
    ended = cli("run", "fedavg", *words, "--out", "run")
    assert ended.code == 0, ended.err
    result = json.loads(Path("run/result.json").read_text())
    found = result["calibration"]
    assert found["positive"] == "ill"
    assert sum(one["samples"] for one in found["bins"]) == found["samples"] == 16
    assert 0 < found["brier"] < 0.25
    assert "local_brier" in result["metrics"]
    assert "How far probabilities can be trusted" in Path("run/report.html").read_text()

    assert cli("export", "run", "--client", "north", "--out", "n.safetensors", "--coefficients", "odds.csv").code == 0
    Path("new.csv").write_text("age,sex,patient\n80,f,anna\n,m,bert\n")
    ended = cli("predict", "n.safetensors", "new.csv")
    assert ended == cli("predict", "run", "new.csv", "--client", "north")
    rows = list(csv.DictReader(ended.out.splitlines()))
    assert [*rows[0]] == ["patient", "label", "probability", "P(well)", "P(ill)"]
    assert [row["patient"] for row in rows] == ["anna", "bert"]
    table = list(csv.DictReader(Path("odds.csv").read_text().splitlines()))
    odds = {row["input"]: float(row["coefficient"]) for row in table}
    logit = odds["(intercept)"] + 80 * odds["age"] + odds["sex=f"]
    assert float(rows[0]["P(ill)"]) == pytest.approx(1 / (1 + math.exp(-logit)), abs=1e-5)
    (age,) = [row for row in table if row["input"] == "age"]
    assert (age["class"], age["against"]) == ("ill", "well")
    assert float(age["odds_ratio"]) == pytest.approx(math.exp(odds["age"]))
    assert odds["age"] > 0

    Path("wrong.csv").write_text("age,sex\n80,x\n1o,m\n")
    ended = cli("predict", "n.safetensors", "wrong.csv")
    assert ended.code == 2
    assert "column 'age', line 3: '1o' is not a number" in ended.err
    assert "column 'sex', line 2: 'x' is none of f, m" in ended.err


def test_only_a_linear_model_has_coefficients(cli: Command, schema: str) -> None:
    assert cli("run", "fedavg", "--data", "hospitals", "--schema", schema, "--rounds", "1", "--out", "run").code == 0
    ended = cli("export", "run", "--client", "north", "--out", "n.safetensors", "--coefficients", "odds.csv")
    assert (ended.code, "no coefficients: only one linear classifier has" in ended.err) == (2, True)
    assert not Path("n.safetensors").exists()
    assert len(load(Path("run")).predict("north", np.zeros((1, 3)))) == 1


def test_applied_samples_are_those_of_a_party(cli: Command, schema: str) -> None:
    assert cli("prepare", "apply", schema, "hospitals/north.csv", "--out", "own.npz").code == 0
    with np.load("own.npz") as found:
        assert found["x"].shape == (32, 3)
        assert set(found["y"].tolist()) == {0, 1}
    assert Path("own.npz").stat().st_mode & 0o777 == 0o600


def test_a_deployment_has_the_schema_in_its_plan(cli: Command, schema: str) -> None:
    Path("run.toml").write_text('system = "fedavg"\nrounds = 2\nmodel = "linear"\n')
    members = '[[member]]\nrole = "server"\nhost = "h"\n[[member]]\nname = "north"\nrole = "client"\n'
    Path("members.toml").write_text(members)
    init = ["deploy", "init", "study", "--config", "run.toml", "--members", "members.toml", "--server", "nats://h:4222"]
    init += ["--packet-gib", "5e-5"]
    ended = cli(*init, "--schema", schema, "--shape", "3")
    assert (ended.code, "the schema says what samples look like" in ended.err) == (2, True)
    assert cli(*init, "--schema", schema).code == 0
    Path("north.token").write_text(cli("deploy", "invite", "study", "north").out)
    patients("north", bad="n,old,x,ill\n")
    join = ["deploy", "join", "north.token", "--data", "hospitals/north.csv", "--home", "home"]
    ended = cli(*join)
    assert ended.code == 2
    assert "column 'age', line 42: 'old' is not a number" in ended.err
    assert "`coterie prepare check SCHEMA north.csv` lists all findings" in ended.err
    assert not Path("home").exists()
    patients("north")
    ended = cli(*join)
    assert (ended.code, ended.err) == (0, "")
    assert "32 samples to train on, 8 for tests, 2 of 2 classes" in ended.out
    home = read_home(Path("home"))
    assert home.about.facts.schema is not None
    with np.load(home.data) as own:
        assert own["x"].shape == (32, 3)
    assert cli("deploy", "approve", "study", "north.request", "--yes", "--offline").code == 0
    assert cli("deploy", "join", "study/north.cert", "--home", "home").code == 0
    Path("other.token").write_text(cli("deploy", "invite", "study", "north", "--again").out)
    Path("empty.csv").write_text("patient,age,sex,outcome\n" + "".join(f"p{i},,m,well\n" for i in range(9)))
    ended = cli("deploy", "join", "other.token", "--data", "empty.csv", "--home", "other")
    told = " ".join(ended.err.split())
    assert "empty.csv, column 'age': every cell is empty, so the column tells nothing here" in told
    assert "empty.csv, column 'outcome': all labels are 'well': the client trains, but its own tests have no" in told
    for name, model in (("other", "linear"), ("large", "mlp")):
        Path(f"{name}.toml").write_text(f'system = "fedprox"\nrounds = 3\nmodel = "{model}"\n')
    ended = cli("deploy", "start", "study", "--config", "large.toml", "--offline")
    assert (ended.code, "the model mlp has 21,102 parameters: a packet with it" in ended.err) == (2, True)
    ended = cli("deploy", "start", "study", "--config", "other.toml", "--offline")
    assert ended.code == 0, ended.err
    assert "Run 2 of 2 members, 3 rounds" in ended.out

    party = build_party(home).party  # as its process stores it
    now = party.state, party.secret
    FileStore(home.state).save(pack(Kept(), now, now))
    Path("new.csv").write_text("patient,age,sex\nanna,80,f\nbert,,m\n")
    rows = list(csv.DictReader(cli("predict", "home", "new.csv").out.splitlines()))
    assert [*rows[0]] == ["patient", "label", "probability", "P(well)", "P(ill)"]
    assert cli("export", "home", "--out", "n.safetensors").code == 0
    assert list(csv.DictReader(cli("predict", "n.safetensors", "new.csv").out.splitlines())) == rows
    age = home.about.facts.schema.columns[1]
    inputs = [[(80 - age.mean) / age.scale, 1, 0], [(age.fill - age.mean) / age.scale, 0, 1]]  # type: ignore[operator]
    expected = load_exported("n.safetensors").predict(inputs, proba=True)[:, 1]
    assert [float(row["P(ill)"]) for row in rows] == pytest.approx(expected.tolist(), rel=1e-5)
