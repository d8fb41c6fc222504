"""Schemas: what is wrong with a table is said at once, and the same inputs come out wherever a schema is applied."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import coterie.data
from coterie.data.columns import Column, Schema, inputs_of
from coterie.data.form import SampleForm, read_data
from coterie.data.preparing import checked, new_samples, prepared, propose, read_schema, to_toml
from coterie.data.samples import read
from coterie.data.sources import load
from coterie.protocol.errors import UserError
from coterie.runs import RunConfig, resolve
from coterie.runs.experiment import build

HEART = sorted(Path(coterie.data.__file__).with_name("heart").iterdir())
SCHEMA = Schema(
    "outcome",
    ("ill", "well"),
    (
        Column("patient", "id"),
        Column("age", unit="years", fill=50.0, mean=50.0, scale=10.0, low=0, high=120),
        Column("sex", values=("f", "m")),
        Column("seen", format="%Y-%m-%d", mean=19000.0, scale=100.0),
        Column("remark", "ignore"),
    ),
    positive="ill",
)
HEAD = "patient,age,sex,seen,remark,outcome\n"
GOOD = HEAD + "a,60,f,2022-01-08,x,ill\nb,,m,2022-04-18,,well\nc,40,,2022-01-08,y,well\n"


def table(folder: Path, content: str, name: str = "own.csv") -> Path:
    path = folder / name
    path.write_text(content)
    return path


def test_inputs_are_filled_coded_and_scaled_as_stated(tmp_path: Path) -> None:
    found = prepared(table(tmp_path, GOOD), SCHEMA)
    assert found.features == inputs_of(SCHEMA.columns) == ("age", "sex=f", "sex=m", "seen")
    assert found.x.tolist() == [[1, 1, 0, 0], [0, 0, 1, 1], [-1, 0, 0, 0]]  # 2022-01-08 is day 19000
    assert SCHEMA.names == ("well", "ill")
    assert found.y.tolist() == [1, 0, 0]


def test_inputs_are_those_of_scikit_learn() -> None:
    """Its ColumnTransformer with the same constants, on the four hospitals with all their gaps."""
    from sklearn.compose import ColumnTransformer
    from sklearn.impute import SimpleImputer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    schema, _ = propose(HEART, "disease", categories=("cp", "restecg", "slope", "thal"))
    parts, ends = [], []  # two rows to fit on, which have the stated means, deviations and categories
    for i, column in enumerate(schema.columns):
        if column.values is None:
            filled = SimpleImputer(strategy="constant", fill_value=column.fill)
            parts.append((column.name, make_pipeline(filled, StandardScaler()), [i]))
            ends.append([column.mean - column.scale, column.mean + column.scale])
        else:
            values = [float(value) for value in column.values]
            parts.append((column.name, OneHotEncoder(categories=[values], handle_unknown="ignore"), [i]))
            ends.append(values[:2])
    theirs = ColumnTransformer(parts, sparse_threshold=0).fit(np.array(ends).T)
    for path in HEART:
        rows = np.genfromtxt(path, delimiter=",", skip_header=1)[:, : len(schema.columns)]
        np.testing.assert_allclose(prepared(path, schema).x, theirs.transform(rows), atol=1e-12)


def test_all_that_is_wrong_is_said_at_once(tmp_path: Path) -> None:
    bad = (
        "patient,agee,sex,seen,outcome,site\n"
        "a,60,f,2022-01-08,ill,1\n"
        "b,61,x,08.01.2022,well,1\n"
        "c,62,m,,sick,1\n"
        "d,63,x,2022-13-01,,1\n"
    )
    samples, found = checked(table(tmp_path, bad), SCHEMA)
    assert samples is None
    said = [str(one).removeprefix(f"{tmp_path}/") for one in found]
    assert said == [
        "own.csv: has no column 'age'; did you mean 'agee'? There are: patient, agee, sex, seen, outcome, site. Add "
        "it, with empty cells where nothing is known",
        "own.csv: the schema does not know the column 'agee': remove it",
        "own.csv: the schema does not know the column 'site': remove it",
        "own.csv, column 'sex', lines 3, 5: 'x' is none of f, m; leave the cell empty, or correct it",
        "own.csv, column 'seen', line 3: '08.01.2022' is a date in another form, %d.%m.%Y, not of the form %Y-%m-%d: "
        "write all dates so",
        "own.csv, column 'seen', line 4: the cell is empty, and nothing is stated that fills it: fill it, or leave the "
        "row out",
        "own.csv, column 'seen', line 5: '2022-13-01' is no date of the form %Y-%m-%d: write all dates so",
        "own.csv, column 'outcome', line 4: 'sick' is none of the classes ill, well: correct it, or remove the row",
        "own.csv, column 'outcome', line 5: there is no label: fill it in, or remove the row",
    ]
    with pytest.raises(UserError) as error:
        prepared(tmp_path / "own.csv", SCHEMA)
    assert [line.removeprefix(f"{tmp_path}/") for line in str(error.value).splitlines()[:-1]] == said
    assert "coterie prepare check SCHEMA own.csv" in str(error.value).splitlines()[-1]


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ("a,700,f,2022-01-08,,ill", "column 'age', line 5: '700' is not plausible, outside 0 to 120: correct it"),
        ("a,old,f,2022-01-08,,ill", "column 'age', line 5: 'old' is not a number: correct it, or leave the cell empty"),
        ("a,inf,f,2022-01-08,,ill", "column 'age', line 5: 'inf' is not a finite number: leave the cell empty"),
        ("a,60,f,2022-01-08,,", "column 'outcome', line 5: there is no label"),
        ("a,60,f,2022-01-08,,ill,1", "line 5: 7 cells under a header of 6"),
    ],
)
def test_a_wrong_cell_is_a_fault(tmp_path: Path, row: str, says: str) -> None:
    samples, (found,) = checked(table(tmp_path, f"{GOOD}{row}\n"), SCHEMA)
    assert samples is None
    assert says in str(found)
    assert "own.csv" in str(found)


def test_columns_of_gaps_and_one_label_are_notes(tmp_path: Path) -> None:
    samples, (note,) = checked(table(tmp_path, f"{HEAD}a,,f,2022-01-08,,ill\nb,NA,m,2022-01-08,,well\n"), SCHEMA)
    assert not note.fault
    assert "column 'age': every cell is empty, so the column tells nothing here" in str(note)
    assert samples is not None
    assert samples.x[:, 0].tolist() == [0, 0]
    samples, (note,) = checked(table(tmp_path, f"{HEAD}a,1,f,2022-01-08,,ill\nb,2,m,2022-01-08,,ill\n"), SCHEMA)
    assert samples is not None
    assert not note.fault
    assert "column 'outcome': all labels are 'ill': the client trains" in str(note)
    assert "there is no row below the header" in str(checked(table(tmp_path, HEAD), SCHEMA)[1][0])


def test_decimal_commas_are_named(tmp_path: Path) -> None:
    """In a check, in a proposal (also of few values, which would be a category), and where no schema is."""
    path = table(tmp_path, f'{HEAD}a,"1,5",f,2022-01-08,,ill\nb,"2,5",m,2022-01-08,,well\n')
    samples, (fault,) = checked(path, SCHEMA)
    assert samples is None
    assert "column 'age', lines 2, 3: '1,5' has a decimal comma: write decimal points" in str(fault)
    for values in (range(12), [1, 2] * 6):
        rows = "".join(f'"{value},5",7,{i % 2}\n' for i, value in enumerate(values))
        path = table(tmp_path, f"dose,age,label\n{rows}")
        made, _ = propose([path], None)
        assert made.columns[0].kind == "number"
        assert made.columns[0].mean == pytest.approx(np.mean(values) + 0.5)
        assert "column 'dose', lines 2, 3, 4" in "".join(str(one) for one in checked(path, made)[1] if one.fault)
    with pytest.raises(UserError, match=r"column 'dose', line 2: '1,5' is not a number; write decimal points"):
        load(str(tmp_path / "own.csv"))


def test_an_id_of_repeated_numbers_is_a_note(tmp_path: Path) -> None:
    """By the same schema other files would train without an input."""
    repeated, words, once = (
        f"{HEAD}{a},1,f,2022-01-08,,ill\n{b},2,m,2022-01-08,,well\n" for a, b in (("7", "7"), ("a", "a"), ("7", "8"))
    )
    samples, (note,) = checked(table(tmp_path, repeated), SCHEMA)
    assert samples is not None
    assert not note.fault
    assert "column 'patient': it is an id, so no input, but holds numbers, some of them twice" in str(note)
    assert not checked(table(tmp_path, words), SCHEMA)[1]
    assert not checked(table(tmp_path, once), SCHEMA)[1]


def test_semicolons_and_decimal_commas_are_read_alike(tmp_path: Path) -> None:
    """With a schema, without one, and for predictions; a column that may have separated thousands is refused."""
    points, commas = "dose,age,label\n1.5,60,0\n2.5,70,1\n", "dose;age;label\n1,5;60;0\n2,5;70;1\n"
    ours, theirs = (table(tmp_path, text, name) for text, name in ((points, "own.csv"), (commas, "other.csv")))
    schema, notes = propose([theirs], None)
    assert schema == propose([ours], None)[0]
    assert not notes
    for read_file in (
        lambda path: prepared(path, schema).x,
        lambda path: new_samples(path, schema.columns)[0],
        lambda path: read(path, None, None).x,
    ):
        assert read_file(ours).tolist() == read_file(theirs).tolist()
    mixed = table(tmp_path, commas.replace("2,5", "1.000"))
    assert "column 'dose', line 2: '1,5' has a decimal comma" in str(checked(mixed, schema)[1][0])


def test_a_proposal_knows_kinds_and_comes_back_from_its_file(tmp_path: Path) -> None:
    rows = "".join(f"p{i},{20 + i},{'fm'[i % 2]},{i + 1:02}/02/2022,,{i % 2},{i}\n" for i in range(10))
    path = table(tmp_path, f"patient,age,sex,seen,empty,label,visit_id\n{rows}")
    schema, notes = propose([path], None)
    assert [(one.name, one.kind) for one in schema.columns] == [
        ("patient", "id"),
        ("age", "number"),
        ("sex", "category"),
        ("seen", "date"),
        ("empty", "ignore"),
        ("visit_id", "id"),
    ]
    age, seen = schema.columns[1], schema.columns[3]
    assert (age.mean, age.fill, age.scale) == (24.5, 24.5, 2.87228)
    assert seen.format == "%d/%m/%Y"
    assert [str(note) for note in notes] == [
        "column 'patient': it has too many words for a category, such as 'p0', so it is an id, and no input",
        "column 'seen': its dates are read as %d/%m/%Y, and fit %m/%d/%Y, too: see which it is",
        "column 'empty': every cell is empty, so it is ignored",
    ]
    assert (schema.label, schema.classes, schema.positive) == ("label", ("0", "1"), "1")
    assert propose([path], "label", "0")[0].names == ("1", "0")
    (tmp_path / "schema.toml").write_text(to_toml(schema))
    assert to_toml(schema).count("\n[[column]]\nname = ") == 6
    assert read_schema(tmp_path / "schema.toml") == schema
    assert checked(path, schema)[1] == []


def test_a_proposal_has_places_for_plausible_ends_and_a_filled_date_in_words(tmp_path: Path) -> None:
    """Not where an end is stated, nor of a category or an id."""
    rows = "".join(f"p{i},{20 + i},{'fm'[i % 2]},{i + 1:02}/02/2022,{i % 2}\n" for i in range(10))
    schema, _ = propose([table(tmp_path, f"patient,age,sex,seen,label\n{rows}")], None)
    written, path = to_toml(schema), tmp_path / "schema.toml"
    assert written.count("# low =\n# high =\n") == written.count("# low =") == 2, "of the number and the date"
    assert "\nfill = 19028.5  # 05/02/2022, in days since 1970\n" in written
    path.write_text(written.replace("# low =", "low = 0").replace("# high =", "high = 99999"))
    edited = read_schema(path)
    assert [(one.low, one.high) for one in edited.columns] == [(None, None), (0, 99999), (None, None), (0, 99999)]
    assert "\n# low =" not in to_toml(edited)
    path.write_text(to_toml(edited))
    assert read_schema(path) == edited


def test_a_proposal_says_that_dates_differ_and_which_option_names_the_label(tmp_path: Path) -> None:
    """Also of few dates, which would be a category."""
    dates = r"column 'seen': its dates have several forms .*, such as '2022-01-10' and '10\.02\.2022', so it is an id"
    for several in (10, 2):
        days = [i % several + 10 for i in range(10)]
        rows = "".join(f"2022-01-{day},{day % 2}\n{day}.02.2022,{day % 2}\n" for day in days)
        path = table(tmp_path, f"seen,outcome\n{rows}")
        with pytest.raises(UserError, match=f"no column is an input.*\n{dates}"):
            propose([path], "outcome")
    with pytest.raises(UserError, match="has no column label, y, target, class: name the label with --label"):
        propose([path], None)
    with pytest.raises(UserError, match="has the columns label and y: name the label with --label"):
        propose([table(tmp_path, "y,label\n1,2\n")], None)


@pytest.mark.parametrize(
    ("cells", "says"),
    [
        ([*range(40, 60), 61, 610], "half of its values are from 45.25 to 55.75, and one is 610: if that is an error"),
        (
            ["1900-01-01", *(f"2022-01-{i}" for i in range(10, 31))],
            "half of its values are from 2022-01-14 to 2022-01-24, and one is 1900-01-01",
        ),
        ([*range(40, 60), 61, 62], ""),
        ([1] * 20 + [610, 3], ""),  # counts of what is rare
    ],
)
def test_a_proposal_tells_what_is_far_out(tmp_path: Path, cells: list[Any], says: str) -> None:
    rows = "".join(f"{cell},{i % 2}\n" for i, cell in enumerate(cells))
    _, notes = propose([table(tmp_path, f"age,label\n{rows}")], None)
    assert [says in str(note) and not note.fault for note in notes] == [True] * bool(says)


@pytest.mark.parametrize(
    ("names", "positive", "told"), [("ill,well", None, True), ("ill,well", "ill", False), ("0,1", None, False)]
)
def test_a_proposal_says_which_class_is_positive(tmp_path: Path, names: str, positive: str | None, told: bool) -> None:
    rows = "".join(f"{i},{names.split(',')[i % 2]}\n" for i in range(10))
    _, notes = propose([table(tmp_path, f"age,label\n{rows}")], None, positive)
    assert [str(note) for note in notes] == [
        "column 'label': 'well' is taken for the positive class, of which probabilities speak: if that is 'ill', say "
        "--positive ill"
    ] * told


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("label = 3", "Expected `str`, got `int`"),
        ('label = "y"\nclasses = ["a"]', "classes are two different names or more"),
        ('label = "y"\nclasses = ["a", "b"]\npositive = "c"', "positive is 'c', which is none of the classes a, b"),
        ('label = "age"\nclasses = ["a", "b"]', "two columns or inputs are called 'age'"),
        ('label = "y"\nclasses = ["a", "b"]\nclas = 1', "unknown field `clas`"),
        ("label = ", "is not a schema: Invalid value"),
        ("label = '=1+1'\nclasses = ['a', 'b']", "would be a command in a spreadsheet or terminal"),
        ("label = 'y'\nclasses = ['a', '@SUM(A1)']", "would be a command"),
        ("label = 'y'\nclasses = ['a', '-2+cmd|x!A']", "would be a command"),
        ('label = "y"\nclasses = ["a", "\\u001b[2J"]', "would be a command"),
    ],
)
def test_a_wrong_schema_is_refused_with_its_file(tmp_path: Path, words: str, says: str) -> None:
    path = table(tmp_path, f'{words}\n[[column]]\nname = "age"\n', "schema.toml")
    with pytest.raises(UserError, match=r"schema\.toml is not a schema") as error:
        read_schema(path)
    assert says in str(error.value)


def test_signs_and_grades_are_names_of_classes() -> None:
    assert Schema("y", ("+", "-", "-1", "+ve", "<5", "a=b"), (Column("age"),)).names[0] == "+"


@pytest.mark.parametrize(
    "wrong",
    [
        {"scale": 0.0},
        {"mean": float("nan")},
        {"low": 2.0, "high": 1.0},
        {"kind": "category"},
        {"kind": "date"},
        {"kind": "id", "values": ("a",)},
        {"values": ("a", "a")},
        {"format": "%Y"},
        {"format": "%Y%m%d%Y"},
        {"format": "(%Y-%m-%d)*"},
        {"format": "%c"},
    ],
)
def test_a_column_that_cannot_be_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="column 'age'"):
        Column("age", **wrong)  # type: ignore[arg-type]


@pytest.mark.filterwarnings("ignore:.*every cell is empty")  # of Switzerland
def test_simulation_deployment_and_prediction_have_the_same_inputs(tmp_path: Path) -> None:
    schema, _ = propose(HEART, "disease", categories=("cp", "restecg", "slope", "thal"))
    (tmp_path / "schema.toml").write_text(to_toml(schema))
    experiment = build(RunConfig("fedavg", data=str(HEART[0].parent), schema=str(tmp_path / "schema.toml")))
    for place, path in enumerate(HEART):
        simulated, deployed = experiment.data[f"client/{place}"], read_data(path, SampleForm.of(schema))
        np.testing.assert_array_equal(simulated.x.numpy(), deployed.x)
        np.testing.assert_array_equal(simulated.y.numpy(), deployed.y)
        np.testing.assert_array_equal(simulated.test_set.x[simulated.test].numpy(), deployed.x_test)
        x, y, ids = new_samples(path, schema.columns, ("disease",))
        assert ids == {}
        assert sorted(map(tuple, x.astype(np.float32))) == sorted(map(tuple, np.vstack([deployed.x, deployed.x_test])))
        assert len(y) == len(x)
    experiment.close()


def test_new_samples_keep_ids_and_need_no_column_that_is_no_input(tmp_path: Path) -> None:
    path = table(tmp_path, "seen,age,sex,patient\n2022-01-08,60,f,a\n2022-01-08,,m,b\n")
    x, y, ids = new_samples(path, SCHEMA.columns, ("outcome",))
    assert (x.shape, y, ids) == ((2, 4), None, {"patient": ["a", "b"]})
    with pytest.raises(UserError, match="the model does not know the column 'site'"):
        new_samples(table(tmp_path, "seen,age,sex,site\n2022-01-08,60,f,a\n"), SCHEMA.columns)


def test_one_table_is_dealt_by_its_sites_and_a_split_is_kept(tmp_path: Path) -> None:
    rows = "".join(
        f"p{i},{30 + i},f,2022-01-08,{'ns'[i // 8]},{('ill', 'well')[i % 2]},{'test' if i % 8 > 5 else 'train'}\n"
        for i in range(16)
    )
    path = table(tmp_path, f"patient,age,sex,seen,remark,outcome,split\n{rows}")
    data = load(str(path), own={"by": "remark", "schema": SCHEMA})
    assert data.owners is not None
    assert (data.owners.names, data.targets.names, len(data.x_test)) == (("n", "s"), ("well", "ill"), 4)
    assert len(read_data(path, SampleForm.of(SCHEMA)).x_test) == 4
    table(tmp_path, path.read_text().replace("train", "test"))
    assert "no row is for training" in str(checked(path, SCHEMA)[1][0])


def test_a_partys_table_may_end_in_any_case(tmp_path: Path) -> None:
    lower, upper = (read_data(table(tmp_path, GOOD, name), SampleForm.of(SCHEMA)) for name in ("own.csv", "OWN.CSV"))
    np.testing.assert_array_equal(lower.x, upper.x)


def test_a_schema_stands_alone(tmp_path: Path) -> None:
    np.savez(tmp_path / "own.npz", x=np.ones((4, 2)), y=[0, 1, 0, 1])
    with pytest.raises(UserError, match=r"own\.npz is not a table: a schema is for csv and parquet files"):
        load(str(tmp_path / "own.npz"), own={"schema": SCHEMA})
    with pytest.raises(UserError, match="gaps=mean has no effect beside a schema"):
        resolve(RunConfig("fedavg", data=str(HEART[0].parent), schema="schema.toml", gaps="mean"))
    with pytest.raises(ValueError, match="the form of the samples"):
        SampleForm((3,), 2, schema=SCHEMA)
