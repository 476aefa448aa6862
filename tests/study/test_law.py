"""The law study: numbers of case files, errors that name the case, and that a wrong rule is seen."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paceline.errors import InvalidField
from paceline.speculation import nucleus as nucleus_module
from paceline.speculation import rejection, rows, select, verify
from paceline.speculation.proposal_row import ProposalRow
from paceline.speculation.rows import Row
from paceline.speculation.tree import DraftTree
from paceline.study import law_kinds
from paceline.study.law import study_law
from paceline_client.cli import main

GOLDEN = Path(__file__).parent.parent / "speculation" / "golden_cases.json"
CASES: list[dict[str, Any]] = json.loads(GOLDEN.read_text(encoding="utf-8"))["cases"]


def first(*keys: str, **wanted: object) -> dict[str, Any]:
    """A copy of the first case with these keys and values."""
    fits = (case for case in CASES if {*keys, *wanted} <= case.keys() and all(case[k] == wanted[k] for k in wanted))
    return copy.deepcopy(next(fits))


def file_of(folder: Path, *cases: Any, name: str = "cases.json") -> Path:
    path = folder / name
    path.write_text(json.dumps({"about": "a test", "cases": list(cases)}), encoding="utf-8")
    return path


def test_the_rules_give_the_golden_numbers() -> None:
    report = study_law([GOLDEN])
    assert report.passed
    assert report.rows[0]["worst_deviation"] < 1e-12
    assert report.rows[0]["cases"] == len(CASES)


def test_the_command_prints_a_line_a_file_and_json_last(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    right, wrong = file_of(tmp_path, *CASES[:3]), first("retained_row")
    wrong["retained_row"][0] += 1e-6
    other = file_of(tmp_path, CASES[0], wrong, name="other.json")
    assert main(["study", "law", str(right), "--json", "--out", str(tmp_path / "report")]) == 0
    assert json.loads((tmp_path / "report/law.json").read_text())["passed"] is True
    capsys.readouterr()
    assert main(["study", "law", str(right), str(other), "--json"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"{right}: worst deviation ")
    assert lines[1].startswith(f"{other}: worst deviation 1e-06 (case 2, retained_row)")
    report = json.loads(lines[-1])
    assert report["passed"] is False
    assert [row["file"] for row in report["results"]] == [str(right), str(other)]


def numbers(case: dict[str, Any]) -> list[tuple[Callable[[], Any], Callable[[Any], None]]]:
    """A getter and a setter for each leaf of a case's results."""
    found: list[tuple[Callable[[], Any], Callable[[Any], None]]] = []
    given = {key for kind in law_kinds.KINDS for key in kind.given}

    def visit(holder: Any, key: Any) -> None:
        value = holder[key]
        if isinstance(value, dict):
            for name in value:
                if name != "drawn":  # which tree is meant, not a result
                    visit(value, name)
        elif isinstance(value, list) and value and isinstance(value[0], dict | float):
            for at in range(len(value)):
                visit(value, at)
        else:
            found.append((lambda: holder[key], lambda new: holder.__setitem__(key, new)))

    for key in case:
        if key not in given:
            visit(case, key)
    return found


def changed(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, float):
        return value + 2e-9
    if isinstance(value, int):
        return value + 1
    return value[:-1] if value and isinstance(value[0], list) else [*value[:-1], 10] if value else [0]


@pytest.mark.parametrize("number", range(len(CASES)))
def test_every_number_of_a_case_counts(number: int, tmp_path: Path) -> None:
    case = copy.deepcopy(CASES[number])
    for get, put in numbers(case):
        value = get()
        put(changed(value))
        assert not study_law([file_of(tmp_path, case)]).passed, value
        put(value)
    assert study_law([file_of(tmp_path, case)]).passed


FAULTS: list[tuple[str, Callable[[dict[str, Any]], object], str]] = [
    ("output_law", lambda case: case.pop("draft_probs", case.pop("children", None)), "allowed: the keys of a case"),
    ("output_law", lambda case: case.pop("accept_probability"), "accept_probability"),
    ("output_law", lambda case: case.update(entropy=1.0), "entropy"),
    ("output_law", lambda case: case.update(output_law=case["output_law"][:-1]), "output_law"),
    ("output_law", lambda case: case.update(accept_probability="1"), "accept_probability"),
    ("output_law", lambda case: case.update(accept_probability=math.nan), "accept_probability"),
    ("output_law", lambda case: case["target_probs"].__setitem__(0, -0.5), "target_probs"),
    ("output_law", lambda case: case["target_probs"].__setitem__(0, 0.5), "target_probs"),
    ("output_law", lambda case: case.update(nucleus_mass=1.5), "nucleus_mass"),
    ("relax_probability", lambda case: case.update(candidates=0), "candidates"),
    ("relax_probability", lambda case: case.update(draft_probs=[1.0]), "draft_probs"),
    ("nucleus", lambda case: case.update(nucleus=[0, 0]), "nucleus"),
    ("retained_row", lambda case: case.update(children=[99]), "children"),
    ("retained_row", lambda case: case.update(children=[0, 0]), "children"),
    ("greedy_token", lambda case: case.update(greedy_token=True), "greedy_token"),
    ("greedy_token", lambda case: case.update(relaxed=0), "relaxed"),
    ("tokens", lambda case: case.update(tokens=0), "tokens"),
    ("tokens", lambda case: case["target_table"].pop(), "target_table"),
    ("budget", lambda case: case.update(budget=2.5), "budget"),
    ("budget", lambda case: case["draft"].pop("paths"), "draft.paths"),
    ("budget", lambda case: case["draft"].update(paths=[["a"]]), "draft.paths"),
    ("budget", lambda case: case.update(draw_first=[]), "draw_first"),
    ("budget", lambda case: case["draw_first"][0].update(drawn=-1), "draw_first.drawn"),
    ("budget", lambda case: case.clear(), "keys"),
]


@pytest.mark.parametrize(("key", "break_it", "named"), FAULTS)
def test_a_malformed_case_is_named(
    key: str, break_it: Callable[[dict[str, Any]], object], named: str, tmp_path: Path
) -> None:
    case = first(key)
    break_it(case)
    with pytest.raises(InvalidField) as caught:
        study_law([file_of(tmp_path, CASES[0], case)])
    assert str(tmp_path / "cases.json") + ": case 2 (cases[1])" in str(caught.value)
    assert named in str(caught.value)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"cases": []}', '{"cases": 3}', '{"cases": [1]}', "nonsense", "\xff", "[" * 100_000]
)
def test_an_unreadable_file_is_one_plain_line(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "broken.json"
    path.write_bytes(text.encode("latin-1"))
    assert main(["study", "law", str(GOLDEN), str(path)]) == 1
    error = capsys.readouterr().err
    assert "broken.json" in error
    assert "Traceback" not in error


@pytest.mark.parametrize("name", ["missing.json", ""])
def test_a_file_that_is_not_there(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["study", "law", str(tmp_path / name)]) == 1
    assert str(tmp_path / name)[-30:] in capsys.readouterr().err  # of a long path the middle is left out


def without_renewing_the_proposal(row: Row, proposal: ProposalRow, siblings: list[int]) -> tuple[list[float], Row]:
    """Each sibling tested against the first draft row."""
    accept_probs, left = [], row
    for token in siblings:
        probs, residual = rejection.recursion(left, proposal, [token])
        accept_probs, left = [*accept_probs, *probs], residual
    return accept_probs, left


def drawing_the_residual_from_the_row(row: Row, proposal: ProposalRow, siblings: list[int]) -> tuple[list[float], Row]:
    return rejection.recursion(row, proposal, siblings)[0], row


def same_order(tree: DraftTree, budget: int, log_probs: object = None) -> DraftTree:
    return tree.first(budget)


SMALLEST_SET = rows.smallest_set

WRONG: list[tuple[str, Any, str, object]] = [
    ("relax_probability", verify, "recursion", without_renewing_the_proposal),
    ("relax_probability", verify, "recursion", drawing_the_residual_from_the_row),
    ("relax_probability", verify, "all_rejected", lambda *_: 0.5),
    ("total_variation", verify, "all_rejected", lambda *_: 0.5),
    ("nucleus", rows, "smallest_set", lambda probs, mass: SMALLEST_SET(probs, mass)[:-1]),
    ("greedy_token", rows, "smallest_set", lambda probs, mass: np.arange(0)),
    ("sequence_total_variation", nucleus_module.Ledger, "allow", lambda ledger, rule, eps, index: (True, ledger)),
    ("sequence_total_variation", verify, "recursion", drawing_the_residual_from_the_row),
    ("retained_row", law_kinds, "retained", lambda row, tree, node: row),
    ("budget", select, "prune", same_order),
    ("budget", law_kinds, "verify", lambda tree, *_: verify.Walk((), (0,))),
]


@pytest.mark.parametrize(("key", "module", "name", "wrong"), WRONG)
def test_a_rule_that_is_implemented_wrongly_is_seen(
    key: str, module: Any, name: str, wrong: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = file_of(tmp_path, *(case for case in CASES if key in case))
    assert study_law([files]).passed
    monkeypatch.setattr(module, name, wrong)
    assert not study_law([files]).passed
