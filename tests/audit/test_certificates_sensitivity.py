"""Sensitivities of rewinding, perturbed Newton and output perturbation: hand values, limits, and real descents."""

import math

import numpy as np
import pytest

from jaxunlearn._validate import InputError
from jaxunlearn.audit.certificates import newton_bound, output_perturbation_sensitivity, rewind_sensitivity

REWIND = {
    "learning_rate": 0.01,
    "epochs": 40,
    "rewound": 5,
    "smoothness": 2.0,
    "gradient_bound": 3.0,
    "size": 100,
    "forget_size": 20,
}
NEWTON = {"forget_size": 50, "size": 1000, "strong_convexity": 0.2, "lipschitz": 10.0, "hessian_lipschitz": 0.005}


def test_rewind_by_hand():
    h = ((1 + 0.01 * 2 * 100 / 80) ** 35 - 1) * (1 + 0.01 * 2) ** 5
    assert rewind_sensitivity(**REWIND) == pytest.approx(2 * 20 * 3 * h / (2 * 100), rel=1e-13)


def test_rewind_tends_to_its_limit_for_small_smoothness():
    limit = rewind_sensitivity(**{**REWIND, "smoothness": 0.0})
    assert limit == pytest.approx(2 * 20 * 3.0 * 0.01 * 35 / 80, rel=1e-14)
    for smoothness in (1e-6, 1e-12, 1e-200, 1e-310):
        near = rewind_sensitivity(**{**REWIND, "smoothness": smoothness})
        assert near == pytest.approx(limit, rel=max(1e-12, 2 * smoothness))
        assert near >= limit * (1 - 1e-15)


def test_rewinding_everything_or_forgetting_nothing_is_exact():
    assert rewind_sensitivity(**{**REWIND, "rewound": 40}) == 0
    assert rewind_sensitivity(**{**REWIND, "forget_size": 0}) == 0
    assert rewind_sensitivity(**{**REWIND, "gradient_bound": 0.0}) == 0


def test_rewind_bounds_real_descents():
    """Ridge regression by full-batch descent, kept where gradients stay below G; the bound has to hold every time."""
    rng, size, forget, epochs, rewound, rate = np.random.default_rng(0), 30, 6, 25, 5, 0.05
    for _ in range(20):
        x, y = rng.normal(size=(size, 2)), rng.normal(size=size)
        smoothness = float((x**2).sum(1).max()) + 0.1
        seen = [0.0]

        def descend(w, rows, steps):
            for _ in range(steps):
                each = x[:rows] * (x[:rows] @ w - y[:rows])[:, None] + 0.1 * w  # noqa: B023
                seen.append(float(np.linalg.norm(x * (x @ w - y)[:, None] + 0.1 * w, axis=1).max()))  # noqa: B023
                w = w - rate * each.mean(0)
            return w

        unlearned = descend(descend(np.zeros(2), size, epochs - rewound), size - forget, rewound)
        retrained = descend(np.zeros(2), size - forget, epochs)
        proven = rewind_sensitivity(
            learning_rate=rate,
            epochs=epochs,
            rewound=rewound,
            smoothness=smoothness,
            gradient_bound=max(seen),
            size=size,
            forget_size=forget,
        )
        assert 0 < np.linalg.norm(unlearned - retrained) <= proven


def test_newton_by_hand():
    assert newton_bound(**NEWTON) == pytest.approx(2 * 0.005 * 50**2 * 10**2 / (0.2**3 * 1000**2), rel=1e-14)
    assert newton_bound(**{**NEWTON, "hessian_lipschitz": 0.0}) == 0  # least squares: the step is exact
    assert newton_bound(**{**NEWTON, "forget_size": 0}) == 0
    twice = {**NEWTON, "forget_size": 100}
    assert newton_bound(**twice) == pytest.approx(4 * newton_bound(**NEWTON))


def test_output_perturbation():
    assert output_perturbation_sensitivity(1.5) == 3.0


@pytest.mark.parametrize(
    ("call", "changed", "named"),
    [
        (rewind_sensitivity, {"epochs": 100_000}, "epochs=100000.*lower"),
        (rewind_sensitivity, {"smoothness": 1e-305, "gradient_bound": 1e300, "epochs": 10**18}, "learning_rate"),
        (rewind_sensitivity, {"rewound": 41}, "rewound=41"),
        (rewind_sensitivity, {"rewound": 1.5}, "rewound=1.5"),
        (rewind_sensitivity, {"learning_rate": 0.0}, "learning_rate=0.0"),
        (rewind_sensitivity, {"smoothness": -1.0}, "smoothness=-1.0"),
        (rewind_sensitivity, {"gradient_bound": math.inf}, "gradient_bound=inf"),
        (rewind_sensitivity, {"forget_size": 100}, "forget_size=100"),
        (newton_bound, {"forget_size": 1000}, "forget_size=1000"),
        (newton_bound, {"strong_convexity": 0.0}, "strong_convexity=0.0"),
        (newton_bound, {"strong_convexity": 1e-200}, "strong_convexity is too small"),
        (newton_bound, {"lipschitz": -1.0}, "lipschitz=-1.0"),
        (newton_bound, {"hessian_lipschitz": math.nan}, "hessian_lipschitz=nan"),
    ],
)
def test_refusals_name_the_argument(call, changed, named):
    with pytest.raises(InputError, match=named):
        call(**{**(REWIND if call is rewind_sensitivity else NEWTON), **changed})
    with pytest.raises(InputError, match="clip_initial=0.0"):
        output_perturbation_sensitivity(0.0)
