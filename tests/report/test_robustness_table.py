import dataclasses

import pytest
from made_robustness import make_record, make_records

from jaxunlearn.report.measured import WIDTH, interval, share
from jaxunlearn.report.robustness import render, render_markdown, tasks, words
from jaxunlearn.report.robustness.table import columns, remarks
from jaxunlearn.robustness import Band, Metric, RobustnessRecord

META = {
    "title": "digits",
    "task": "classification",
    "scenario": "class 0",
    "conditions": ["clean", "16/255"],
    "seeds": 2,
}


def metric(name, label, values, **more):
    fields = {"meaning": f"What {label} is.", "better": "lower", "count": 10, "headline": True}
    return Metric(name=name, label=label, values=values, **{**fields, **more})


def by_hand(method, ua, mia):
    accuracy = metric("ta_all", "TA (all classes)", [[0.98, 0.99], []], better="higher", count=450)
    metrics = [accuracy, metric("ua", "UA", ua), metric("mia", "MIA", mia, per_seed=2)]
    return RobustnessRecord(method=method, metrics=metrics, **META)


def three():
    return [
        by_hand("original", [[1.0, 1.0], []], [[1.0] * 4, []]),
        by_hand("retrain", [[0.0, 0.0], [0.0, 0.1]], [[0.0, 0.1, 0.0, 0.1], [0.0, 0.1, 0.0, 0.1]]),
        by_hand("FT", [[0.1, 0.3], [0.9994, 1.0]], [[0.2, 0.4, 0.2, 0.4], [0.9, 1.0, 0.9, 1.0]]),
    ]


GOLDEN = """\
          ─── TA ↑ ───  ─────────── clean ────────────  ───────── 16/255 ─────────
method     all classes            UA ↓           MIA ↓          UA ↓         MIA ↓
──────────────────────────────────────────────────────────────────────────────────
original  98.50 ± 0.71  100.00 ±  0.00  100.00 ±  0.00      –             –
retrain   98.50 ± 0.71    0.00 ±  0.00    5.00 ±  5.77   5.00 ± 7.07   5.00 ± 5.77
FT        98.50 ± 0.71   20.00 ± 14.14   30.00 ± 11.55  99.97 ± 0.04  95.00 ± 5.77
──────────────────────────────────────────────────────────────────────────────────
digits, to be forgotten: class 0.
In % (MIA too, which RUB prints as a fraction): mean ± standard deviation over
  repeats; ↑ higher and ↓ lower speak for the unlearning.
TA (all classes): What TA (all classes) is; N = 450; 2 seeds.
UA: What UA is; N = 10; 2 seeds.
MIA: What MIA is; N = 10; 2 seeds × 2 repeats.
retrain is the reference: it never saw the forgotten data, so hold every row
  against it under the same condition."""


def test_the_table_by_hand():
    assert render(three()) == GOLDEN


def test_a_single_seed_has_no_spread():
    record = make_record("FT", seeds=1)
    record = dataclasses.replace(record, metrics=[m for m in record.metrics if m.per_seed == 1])
    said = " ".join(render([record]).split())
    assert "±" not in said and "one repeat, so there is no spread" in said
    assert interval(record, "ua", "clean") is None


def test_without_retraining_it_says_what_cannot_be_told():
    records = [r for r in three() if r.method != "retrain"]
    assert "There is no retrain here" in render(records)
    assert "There is no retrain here" in words.lead(records) and "retraining, which" not in words.finding(records)


def test_unexpected_means_are_warnings():
    band = Band(method="FT", metric="ua", condition="16/255", low=0.2, high=0.5)
    records = [*three()[:2], dataclasses.replace(three()[2], bands=[band])]
    assert render(records).endswith("Warning: FT: UA 16/255 is 100.0, expected between 20 and 50 with this preset.")


@pytest.mark.parametrize("names", [3, 4, 7])
def test_it_fits_whatever_the_number_of_conditions(names):
    conditions = ["clean", *(f"{2**i}/255" for i in range(1, names - 1)), "unbounded"]
    record = dataclasses.replace(
        three()[2],
        conditions=conditions,
        metrics=[metric("ua", "UA", [[0.1, 0.999]] * names), metric("mia", "MIA", [[0.1, 0.99]] * names)],
    )
    text = render([record])
    assert max(map(len, text.splitlines())) <= WIDTH
    assert all(f" {condition} " in text for condition in conditions)
    assert sum(line.startswith("FT") for line in text.splitlines()) == 1 + (names > 4)


def test_three_conditions_with_the_paper_s_digits_fit():
    text = render(make_records())
    assert max(map(len, text.splitlines())) <= WIDTH
    assert "± 0.00" in text  # two decimals, as the paper prints them


def test_only_the_short_tables_metrics_are_in_it():
    assert {c.metric for c in columns(make_records())} == {"ta_retain_classes", "ta_all", "ua", "mia"}


def test_markdown_is_rectangular():
    odd = dataclasses.replace(three()[2], method="a|<b>\nc")
    lines = [line for line in render_markdown([*three(), odd]).splitlines() if line.startswith("|")]
    assert len({line.replace("\\|", "").count("|") for line in lines}) == 1 and len(lines) == 6
    assert "16/255: UA ↓" in lines[0] and "99.97 ± 0.04" in lines[4] and "&lt;b>" in lines[5]


def test_no_metrics():
    assert render([]) == render_markdown([]) == "No metrics."


def test_the_finding_names_the_worst_and_retraining_beside_it():
    assert words.finding(three()) == (
        "Under an attack of 16/255, 99.97% of the forgotten images are recognised again after FT; after retraining, which "
        "never saw them, 5.0%."
    )


def test_the_finding_without_attacks_or_unlearned_models():
    clean = [dataclasses.replace(r, conditions=["clean"], metrics=[m for m in r.metrics[:0]]) for r in three()]
    assert words.finding(clean) == "No unlearned model was looked at."
    assert words.finding(three()[:2]) == "Under an attack of 16/255: after retraining, which never saw them, 5.0%."
    before = [
        dataclasses.replace(
            r, conditions=["clean"], metrics=[dataclasses.replace(r.metrics[1], values=r.metrics[1].values[:1])]
        )
        for r in three()
    ]
    assert words.finding(before).startswith("Without an attack, 20.0% of the forgotten images are recognised after FT;")


def test_the_strongest_attack_counts_in_whatever_order():
    record = make_record("FT", conditions=["clean", "16/255", "8/255"])
    assert tasks.strongest([record]) == "16/255"
    assert tasks.strongest([make_record("FT", conditions=["clean", "unbounded", "8/255"])]) == "unbounded"


def test_a_second_attack_that_finds_more_is_a_warning():
    assert remarks(three()[1]) == []
    values = [[0.0, 0.0], [0.08, 0.1]]
    record = dataclasses.replace(three()[1], metrics=[*three()[1].metrics, metric("ua_second", "UA, APGD", values)])
    assert remarks(record) == []  # 9% beside 5% is within the margin
    record.metrics[-1].values[1][:] = [0.2, 0.3]
    (text,) = remarks(record)
    assert text.startswith(
        "retrain: the second attack brings back more, 25.0% rather than 5.0% under an attack of 16/255;"
    )


def test_intervals_decide_who_is_beyond_retraining():
    # Student's t of one degree of freedom is 12.7: seeds at 0.1 and 0.3 reach from -1.07 to 1.47, at 0 and 0.1 up to 0.685.
    assert interval(three()[2], "ua", "clean") == (0.0, 1.0)
    assert interval(three()[1], "ua", "16/255") == pytest.approx((0.0, 0.05 + 12.7062 * 0.05), abs=1e-5)
    assert words.beyond(three(), "16/255") is None  # two seeds may agree by chance


def test_three_seeds_are_compared():
    retrain = dataclasses.replace(by_hand("retrain", [[0.0, 0.0, 0.0], [0.0, 0.1, 0.0]], [[], []]), seeds=3)
    method = dataclasses.replace(by_hand("FT", [[0.0, 0.1, 0.2], [0.99, 1.0, 1.0]], [[], []]), seeds=3)
    assert words.beyond([retrain, method], "clean") == ([], 1)  # 0.1 ± 4.30 * 0.1 / sqrt(3) reaches below 0
    assert words.beyond([retrain, method], "16/255") == (["FT"], 1)
    assert "1 of 1 methods recognises more of them than retraining does" in words.lead([retrain, method])
    alike = dataclasses.replace(retrain, method="FT")
    assert "No method recognises more" in words.lead([retrain, alike])
    assert words.beyond([method], "clean") is None


def test_shares_are_not_rounded_to_all_or_nothing():
    assert [share(v) for v in (0.0, 0.00004, 0.9996, 1.0)] == ["0%", "0.004%", "99.96%", "100%"]


def filled_in(method, l1):
    """A record of an image-to-image task, of three seeds; ``l1`` without an attack and under two."""
    values = [[v - 0.01, v, v + 0.01] for v in l1]
    fields = META | {"task": "image-to-image", "conditions": ["clean", "8/255", "unbounded"], "seeds": 3}
    distance = metric("l1", "L1", values, better="higher", percent=False, digits=3)
    return RobustnessRecord(method=method, metrics=[distance], **fields)


def test_where_a_distance_is_measured_the_least_is_the_worst():
    records = [filled_in("retrain", [0.24, 0.23, 0.23]), filled_in("i2i", [0.31, 0.26, 0.08])]
    assert words.finding(records) == (
        "Under an unbounded attack, what is filled into forgotten images is 0.080 away from the original model’s after i2i; "
        "after retraining, which never saw them, 0.230."
    )
    assert words.beyond(records, "unbounded") == (["i2i"], 1) and words.beyond(records, "clean") == ([], 1)
    assert "1 of 1 methods comes nearer to the original model than retraining does under an unbounded" in words.lead(
        records
    )
    assert "No method comes nearer" in words.lead([records[0], dataclasses.replace(records[0], method="salun")])
    assert words.verdict(records[1], records) == (
        "What it fills into the images that were to be forgotten is from the original model’s at a distance of 0.310 without "
        "an attack (retrain 0.240), 0.260 under an attack of 8/255 (retrain 0.230) and 0.080 under an unbounded attack "
        "(retrain 0.230)."
    )
    assert "0.080 ± 0.010" in render(records)


def drawn(method, asr):
    """A record of a text-to-image task, of two seeds."""
    fields = META | {"task": "text-to-image", "conditions": ["clean", "random prefix", "gradient"]}
    return RobustnessRecord(method=method, metrics=[metric("asr", "ASR", [[v, v] for v in asr])], **fields)


def test_the_last_of_attacks_without_a_strength_counts():
    records = [drawn("retrain", [0.0, 0.1, 0.0]), drawn("esd-x", [0.0, 0.25, 0.5])]
    assert tasks.strongest(records) == "gradient"
    assert words.finding(records) == (
        "Under the gradient attack, 50.0% of the prompts draw what was to be forgotten again after esd-x; after retraining, "
        "which never saw them, 0%."
    )
    assert "25.0% with random prefixes (retrain 10.0%)" in words.verdict(records[1], records)


def test_every_task_says_what_its_metric_is():
    for task in tasks.TASKS.values():
        assert "{value}" in task.finding and "{method}" in task.finding and "{values}" in task.verdict
        assert any(task.short in heading for heading, _ in task.guide)
