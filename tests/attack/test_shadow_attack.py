import numpy as np
import pytest

from jaxunlearn._validate import InputError
from jaxunlearn.attack import shadow
from jaxunlearn.metrics import membership

LABELS = np.tile(np.arange(3), 60)


def shadows(leak, *, seed=0, models=4, share=0.3, noise=1.0):
    """Logits of shadow models whose members have ``leak`` added to their own class's, and the membership."""
    rng = np.random.default_rng(seed)
    members = np.stack([rng.permutation(LABELS.size) < share * LABELS.size for _ in range(models)])
    return rng.normal(0, noise, (models, LABELS.size, 3)) + leak * members[..., None] * np.eye(3)[LABELS], members


def target(leak, n=300, seed=7):
    rng = np.random.default_rng(seed)
    labels = np.arange(n) % 2
    return rng.normal(size=(n, 3)) + leak * np.eye(3)[labels], labels


@pytest.mark.parametrize("kind", shadow.KINDS)
def test_a_leak_is_found_and_its_absence_too(kind):
    attack = shadow.fit(0, *shadows(8.0), LABELS, classes=(0, 1), kind=kind)
    forgotten, others = target(0.0, seed=1), target(0.0, seed=2)
    found = membership.evaluate(attack.scores, *target(8.0), *others)
    assert found["auc"].value > 0.99 and found["recall"].value > 0.98 and found["control"].value < 0.02
    assert found["balanced_accuracy"].value > 0.98 and found["tpr_at_fpr_1%"].value > 0.95
    none = membership.evaluate(attack.scores, *forgotten, *others)
    assert none["auc"].value == pytest.approx(0.5, abs=0.1)  # 3.5 standard errors
    assert none["recall"].value == pytest.approx(none["control"].value, abs=0.05)
    assert none["tpr_at_fpr_1%"].value < 0.06


@pytest.mark.parametrize("kind", shadow.KINDS)
def test_shadows_without_a_leak_teach_nothing(kind):
    attack = shadow.fit(0, *shadows(0.0), LABELS, classes=(0, 1), kind=kind)
    result = membership.evaluate(attack.scores, *target(0.0, n=2000, seed=1), *target(0.0, n=2000, seed=2))
    assert result["auc"].value == pytest.approx(0.5, abs=0.06)
    assert result["recall"].value == pytest.approx(result["control"].value, abs=0.06)


def test_the_control_exposes_an_attack_that_always_says_member():
    attack = shadow.fit(0, *shadows(2.0), LABELS, classes=(0, 1))
    # A model that was trained for longer than the shadows: its own-class logits are large whatever it is shown.
    result = membership.evaluate(attack.scores, *target(30.0, seed=1), *target(30.0, seed=2))
    assert result["recall"].value == 1 and result["control"].value == 1
    assert result["balanced_accuracy"].value == 0.5 and result["auc"].value == pytest.approx(0.5, abs=0.1)


def test_hand_values():
    """Standardised first logit minus 1 is the score: 2 (x - 3) / 2 - 1 = x - 4 of class 5, and 4 - x of class 6."""
    models = {
        c: shadow._ClassAttack(
            np.array([3.0, 0.0]), np.array([2.0, 1.0]), ((s * np.array([[2.0], [0.0]]), np.array([-s])),), 9
        )
        for c, s in ((5, 1.0), (6, -1.0))
    }
    attack = shadow.ShadowAttack("logistic", models)
    logits = np.array([[5.0, 9.0], [4.0, 9.0], [1.0, 9.0], [1.0, 9.0]])
    assert attack.scores(logits, np.array([5, 5, 5, 6])).tolist() == [1, 0, -3, 3]
    result = membership.evaluate(attack.scores, logits, np.array([5, 5, 5, 6]), logits[[0, 1]] - 2, np.array([6, 5]))
    # Others: 4 - 3 = 1 and 2 - 4 = -2; a score of 0 is not called a member.
    assert result == {
        "recall": (0.5, 4),
        "control": (0.5, 2),
        "balanced_accuracy": (0.5, 6),
        "auc": ((0.5 + 1 + 0 + 1 + 0 + 0 + 1 + 1) / 8, 6),
        "tpr_at_fpr_1%": (0.25, 4),
    }


def test_the_mlps_scores_are_its_log_odds_beyond_where_probabilities_end(monkeypatch):
    from sklearn import neural_network

    made = []

    class Recorded(neural_network.MLPClassifier):
        def fit(self, features, target):
            made.append(self)
            return super().fit(features, target)

    monkeypatch.setattr(neural_network, "MLPClassifier", Recorded)
    attack = shadow.fit(3, *shadows(3.0), LABELS, classes=(2,), kind="mlp")
    model = attack.models[2]
    logits = np.random.default_rng(0).normal(size=(40, 3))
    p = made[0].predict_proba((logits - model.mean) / model.std)[:, 1]
    np.testing.assert_allclose(attack.scores(logits, np.full(40, 2)), np.log(p / (1 - p)), rtol=1e-6)
    far = attack.scores(np.array([[0, 0, 300.0], [0, 0, 600.0]]), np.array([2, 2]))
    assert 40 < far[0] < far[1] < np.inf


def test_the_draw_is_balanced_and_small_classes_are_fitted():
    logits, members = shadows(1.0)
    of_class = members[:, LABELS == 0]
    assert shadow.fit(0, logits, members, LABELS, classes=(0,)).models[0].size == of_class.sum() < of_class.size / 2
    assert shadow.fit(0, logits, ~members, LABELS, classes=(0,)).models[0].size == of_class.sum()
    members = np.zeros((1, LABELS.size), bool)
    members[0, 0] = True
    for kind in shadow.KINDS:
        assert shadow.fit(0, logits[:1] * 0, members, LABELS, classes=(0,), kind=kind).models[0].size == 1


@pytest.mark.parametrize("kind", shadow.KINDS)
def test_seeds_are_reproducible_and_classes_independent(kind):
    logits, members = shadows(1.0)
    x, y = target(1.0, n=20)
    first, again, other = (
        shadow.fit(s, logits, members, LABELS, classes=(0, 1), kind=kind).scores(x, y) for s in (4, 4, 5)
    )
    assert np.array_equal(first, again) and not np.isclose(first, other).any()
    changed, alone = logits.copy(), y == 1
    changed[:, LABELS != 1] += 5
    attack = shadow.fit(4, changed, members, LABELS, classes=(1, 2), kind=kind)
    np.testing.assert_array_equal(attack.scores(x[alone], y[alone]), first[alone])


def test_refusals():
    logits, members = shadows(1.0)
    arguments = {"seed": 0, "logits": logits, "members": members, "labels": LABELS, "classes": (0, 1)}
    none_of_0, all_of_0 = members & (LABELS != 0), members | (LABELS == 0)
    nan = logits.copy()
    nan[1, 3, 0] = np.nan
    for changes, message in (
        ({"kind": "mpl"}, "Did you mean 'mlp'"),
        ({"seed": -1}, "seed=-1"),
        ({"classes": ()}, "classes to hold at least one"),
        ({"logits": logits[0]}, "Expected logits of shape"),
        ({"members": members[:2]}, "Expected members of shape"),
        ({"members": members.astype(int)}, "members to be bool"),
        ({"members": none_of_0}, "of class 0 .* got 0 and 240; use more shadow models"),
        ({"members": all_of_0}, "of class 0 .* got 240 and 0"),
        ({"classes": (7,)}, "of class 7 .* got 0 and 0"),
        ({"logits": nan}, "finite shadow logits, got 1 of 720"),
    ):
        with pytest.raises(InputError, match=message):
            shadow.fit(**(arguments | changes))
    attack = shadow.fit(**arguments)
    x, y = target(0.0, n=10)
    with pytest.raises(InputError, match=r"among the attacked classes \[0, 1\], got \[2\]"):
        attack.scores(x, y + 1)
    with pytest.raises(InputError, match="Expected logits of shape"):
        attack.scores(x[:, :2], y)
    with pytest.raises(InputError, match="30 of 30 that are not: the model has diverged"):
        attack.scores(x * np.inf, y)
    with pytest.raises(InputError, match=r"got \[2\]"):
        membership.evaluate(attack.scores, x, y, x, y + 1)
    with pytest.raises(InputError, match="forget_labels to hold at least one"):
        membership.evaluate(attack.scores, x[:0], y[:0], x, y)
    with pytest.raises(InputError, match="other_labels to hold at least one"):
        membership.evaluate(attack.scores, x, y, x[:0], y[:0])
