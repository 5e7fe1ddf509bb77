"""A comparison on a terminal, on its page and in its picture: the answer first, then tables, notes and warnings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from comparisons import facts_of, scored, shown

from ganherd.compare import comparison_page, comparison_text, score_plots
from ganherd.compare.answer import answer


def test_the_answer_is_one_sentence() -> None:
    a = scored(fid=[5.0, 6.0, 7.0], kid=[1.0, 2.0, 3.0], recall=[0.1, 0.2, 0.3], coverage=[0.5, 0.6, 0.4])
    b = scored(fid=[4.0, 5.01, 6.0], kid=[2.0, 1.0, 2.5], recall=[0.2, 0.30001, 0.4], coverage=[0.6, 0.4, 0.5])
    first = shown(facts_of({"a": a, "b": b}, 3)).splitlines()[0]
    assert first == (
        "b is better in FID (5.003 against 6.000); it is also better in recall; KID and coverage are undecided; "
        "3 seeds decide little."
    )
    swapped = shown(facts_of({"b": b, "a": a}, 3)).splitlines()[0]
    assert swapped == first  # whichever is named first
    one = facts_of({"a": scored(fid=[5.0]), "b": scored(fid=[1.0])}, 1)
    assert shown(one).splitlines()[0].endswith("one seed decides nothing: use --seeds 3 or more.")
    luck = scored(fid=[5.0, 3.0, 9.0])
    open_ = shown(facts_of({"a": a, "luck": luck}, 3)).splitlines()[0]
    assert open_.startswith("FID does not decide between them (a 6.000 and luck 5.667)")
    three = shown(facts_of({"a": a, "b": b, "c": scored(fid=[9.0, 9.99, 11.0])}, 6)).splitlines()[0]
    assert (
        three.startswith("b is better than all others in FID (5.003 against 6.000 and 9.997)")
        and "too few" not in three
    )


def test_unequal_device_seconds_get_a_note() -> None:
    rows = {name: {"device_seconds": s} for name, s in (("a", 20.0), ("b", 15.0))}
    facts = {
        "training": {"recipes": {"a": {}, "b": {}}, "seeds": 2, "budget": "20s"},
        "bases": {"budget": {"entries": rows}},
    }
    assert any("not equal (15.0 to 20.0)" in note for note in comparison_text.notes(facts, "budget"))
    rows["b"]["device_seconds"] = 19.8
    assert not any("not equal" in note for note in comparison_text.notes(facts, "budget"))


def test_cut_intervals_are_named() -> None:
    from ganherd.metrics.statistics.seeds import together

    entries = [{"value": v, "samples": 9, "network": "x", "seed": 0} for v in (0.1, 0.9)]
    score = together(entries, [0, 1], (0.0, float("inf")))
    assert score["interval"]["low"] == 0.0 and score["interval"]["how"].endswith("cut at 0")
    assert score["interval"]["cut"] is True
    assert not {"cut"} & set(together(entries, [0, 1])["interval"])
    facts = facts_of({"a": {"fid": score}, "b": scored(fid=[1.0, 2.0])}, 2)
    assert "it is cut there: FID of a" in shown(facts, verbose=True)


def test_page_begins_with_the_answer_and_keeps_stars_and_warnings(tmp_path: Path) -> None:
    a, b = scored(fid=[5.0, 6.0, 7.0], kid=[1.0, 2.0, 3.0]), scored(fid=[4.0, 5.01, 6.0], kid=[2.0, 1.0, 2.5])
    a["kid"]["warning"] = "only 12 samples"
    for own in (a, b):
        own["skipped"] = {"ais": "it takes long"}
    facts = facts_of({"a": a, "b": b}, 3)
    (tmp_path / "a" / "samples").mkdir(parents=True)
    (tmp_path / "a" / "samples" / "final.png").write_bytes(b"\x89PNG")
    page = str(comparison_page.render(facts, tmp_path))
    order = [
        page.index(words)
        for words in ("b is better in FID", "samples of a", "<svg", "KID of a: only 12 samples.", "Differences")
    ]
    assert order == sorted(order)
    assert "5.003 (0.000 to 9.000) *" in page
    assert '<span class="pill good">better</span>' in page and '<span class="pill">undecided</span>' in page
    assert "AIS is left out: it takes long." in page
    assert "KID of a: only 12 samples." in shown(facts) and "AIS is left out" in shown(facts)


@pytest.mark.parametrize(
    ("metric", "goal"),
    [("fid", "lower is better"), ("recall", "higher is better"), ("diversity", "1 is best"), ("density", "1 is best")],
)
def test_panel_title_names_the_direction_of_the_verdict(metric: str, goal: str) -> None:
    entries = {name: {"run": name, "scores": {metric: {"value": 1.0}}} for name in ("a", "b")}
    training = {"recipes": {"a": {}, "b": {}}, "seeds": 1, "budget": "10steps"}
    drawn = score_plots.draw({"bases": {"budget": {"entries": entries}}, "training": training, "data": {"name": "x"}})
    assert goal in drawn.axes[0].get_title(loc="left")


def drawn_at(facts: Any) -> list[float]:
    """Return the heights of the means in the picture, from top to bottom."""
    lines = score_plots.draw_score(facts, "fid").axes[0].lines
    return [float(line.get_ydata()[0]) for line in lines if line.get_marker() == "o"]


def test_dots_are_at_their_names_unless_a_contender_has_two_runs() -> None:
    facts = facts_of({"a": scored(fid=[5.0, 6.0]), "b": scored(fid=[4.0, 5.0])}, 2)
    assert drawn_at(facts) == [0.0, 1.0] and "Hollow" not in score_plots.legend(facts)
    low = score_plots.draw_score(facts, "fid").get_figheight()
    entries = facts["bases"]["budget"]["entries"]
    facts["bases"]["images"] = {"entries": {"a": entries["a"], "b": {**entries["b"], "run": "images/b"}}}
    assert drawn_at(facts) == pytest.approx([0.0, 0.8, 1.2]) and "Hollow" in score_plots.legend(facts)
    assert score_plots.draw_score(facts, "fid").get_figheight() > low


def test_tables_are_explained_next_to_them(tmp_path: Path) -> None:
    facts = facts_of({"a": scored(fid=[5.0, 6.0, 7.0]), "b": scored(fid=[4.0, 5.01, 6.0])}, 3)
    page = str(comparison_page.render(facts, tmp_path))
    scores, cost = page.index("<h3>Scores</h3>"), page.index("<h3>Cost</h3>")
    assert "* better than all others." in page[scores:cost]
    of_a_seed = "Members, parameters and images seen are those of one seed"
    assert of_a_seed in page[cost : page.index("difference: minus a")] and of_a_seed in shown(facts, verbose=True)
    one = facts_of({"a": scored(fid=[5.0]), "b": scored(fid=[4.0])}, 1)
    assert of_a_seed not in str(comparison_page.render(one, tmp_path))


def test_terminal_says_which_values_are_better() -> None:
    scores = {name: scored(fid=[5.0, 6.0], recall=[0.1, 0.2], kid=[1.0, 2.0], diversity=[0.9, 0.8]) for name in "ab"}
    text = "FID and KID: lower is better; recall: higher is better; diversity: 1 is best."
    assert text in shown(facts_of(scores, 2)).splitlines()


def test_no_axis_holds_what_a_score_cannot_be() -> None:
    certain = {
        "value": 0.99,
        "per_seed": [0.98, 1.0],
        "interval": {"low": 0.0, "high": 1.0},
        "samples": 9,
        "network": "x",
    }
    wide = {"value": 3.2, "per_seed": [3.0, 3.4], "interval": {"low": 0.0, "high": 7.039}, "samples": 9, "network": "x"}
    facts = facts_of({n: {"label_accuracy": certain, "fid": wide} for n in "ab"}, 2)
    drawn = score_plots.draw(facts)
    fid, accuracy = drawn.axes[:2]
    assert accuracy.get_xlim()[1] == 1.0 and fid.get_xlim()[0] >= 0.0
    assert fid.get_xlim()[1] < 5  # an interval over two seeds does not press the values together: it ends in an arrow
    assert "An arrow marks an interval that continues" in drawn.get_supxlabel().replace("\n", " ")


def test_picture_names_omitted_scores_and_uses_the_units_of_the_table() -> None:
    names = ("fid", "ifid", "kid", "label_accuracy", "precision", "recall", "coverage", "density")
    facts = facts_of({n: scored(**{name: [0.5, 0.6] for name in names}) for n in "ab"}, 2)
    drawn = score_plots.draw(facts, "compare.html")
    assert drawn.get_supxlabel().replace("\n", " ").endswith("Not drawn, but in compare.html: coverage, density.")
    accuracy, precision = drawn.axes[3], drawn.axes[4]
    assert accuracy.xaxis.get_major_formatter()(0.5, 0) == "50 %"
    assert "%" not in precision.xaxis.get_major_formatter()(0.5, 0)
    few = facts_of({n: scored(fid=[0.5, 0.6]) for n in "ab"}, 2)
    assert "Not drawn" not in score_plots.draw(few, "compare.html").get_supxlabel()


def test_the_page_draws_what_was_measured() -> None:
    rows = {n: {"scores": {"fid": {"value": 2.0}, "modes": {"value": 8}, "skipped": {"kid": "why"}}} for n in "ab"}
    assert score_plots.panels({"bases": {"budget": {"entries": rows}}}) == ["fid", "modes"]


def test_an_answer_about_three_says_than_all_others() -> None:
    a = scored(fid=[5.0, 6.0, 7.0] * 2, recall=[0.1, 0.2, 0.3] * 2, kid=[1.0, 2.0, 3.0] * 2)
    b = scored(fid=[4.0, 5.01, 6.0] * 2, recall=[0.2, 0.3001, 0.4] * 2, kid=[2.0, 3.001, 4.0] * 2)
    c = scored(fid=[8.0, 9.01, 10.0] * 2, recall=[0.05, 0.15, 0.2501] * 2, kid=[0.5, 1.501, 2.5] * 2)
    text = answer(facts_of({"a": a, "b": b, "c": c}, 6))
    assert "it is also better than all others in recall" in text and "c is better than all others in KID" in text


def test_without_a_common_score_nothing_is_decided() -> None:
    facts = facts_of({"a": scored(fid=[1.0, 2.0]), "b": scored(kid=[1.0, 2.0])}, 2)
    assert answer(facts) == "No score could be measured for all of them, so nothing is decided."


@pytest.mark.parametrize(("seeds", "limit"), [((1, 1), "one seed each"), ((1, 3), "some runs have one seed")])
def test_finished_runs_of_one_seed_are_named(seeds: tuple[int, int], limit: str) -> None:
    facts = facts_of({"a": scored(fid=[5.0]), "b": scored(fid=[1.0])}, 1, ("runs",))
    facts["training"]["recipes"] = {name: {"herd": {"seeds": n}} for name, n in zip("ab", seeds, strict=True)}
    assert answer(facts).endswith(f"{limit}: other seeds may differ.")


def test_notes_are_true_for_finished_runs_and_for_recipes() -> None:
    scores = {"a": scored(fid=[5.0, 6.0], kid=[1.0, 2.0]), "b": scored(fid=[4.0, 5.0], kid=[1.0, 2.0])}
    of_runs, of_recipes = (
        " ".join(comparison_text.notes(facts_of(scores, 2, (basis,)), basis)) for basis in ("runs", "budget")
    )
    assert "seeds that both have are paired" in of_runs and "declared" not in of_runs
    assert "paired by seed" in of_recipes and "declared before anything was trained" in of_recipes
    assert "Each interval is that of one score by itself" in shown(facts_of(scores, 2))
