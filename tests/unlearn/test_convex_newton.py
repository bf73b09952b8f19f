"""The convex losses, their constants, the Newton step and output perturbation, against hand values and other solvers."""

import math

import numpy as np
import pytest
from scipy.optimize import minimize

from jaxunlearn._validate import InputError
from jaxunlearn.certificates import newton_bound
from jaxunlearn.data import convex as points
from jaxunlearn.unlearn import newton


def logistic_value(w, z, regularisation):
    return np.logaddexp(0.0, -z @ w) + regularisation / 2 * w @ w


def cubic_value(w, z, quadratic, third):
    return quadratic / 2 * w[0] ** 2 + third / 6 * w[0] ** 3 - z[:, 0] * w[0]


CASES = {
    "cubic": (newton.cubic(0.2, 0.05), lambda w, z: cubic_value(w, z, 0.2, 0.05), 1),
    "logistic": (newton.logistic(0.3), lambda w, z: logistic_value(w, z, 0.3), 3),
}


@pytest.mark.parametrize("name", CASES)
def test_derivatives_are_those_of_the_loss(name):
    loss, value, d = CASES[name]
    rng = np.random.default_rng(0)
    w, z, h = rng.normal(size=d), rng.normal(size=(5, d)), 1e-5
    for i, e in enumerate(np.eye(d)):
        slope = (value(w + h * e, z) - value(w - h * e, z)) / (2 * h)
        np.testing.assert_allclose(loss.gradient(w, z)[:, i], slope, rtol=1e-8, atol=1e-9)
        bend = (loss.gradient(w + h * e, z) - loss.gradient(w - h * e, z)) / (2 * h)
        np.testing.assert_allclose(loss.hessian(w, z)[:, :, i], bend, rtol=1e-7, atol=1e-9)


def test_the_cubic_minimiser_in_closed_form():
    retain, forget = points.cubic_points(retain_size=1000, forget_size=50, radius=10.0)
    trained, unlearned, retrained = newton.unlearn(newton.cubic(0.2, 0.005), retain, forget, np.zeros(1))
    root = (-0.2 + math.sqrt(0.2**2 - 2 * 0.005 * 10 * 50 / 1050)) / 0.005
    assert trained[0] == pytest.approx(root, rel=1e-14) and retrained[0] == 0
    # On the retain set the step from w leaves w - (lambda0 w + M w^2 / 2) / (lambda0 + M w).
    left = root - (0.2 * root + 0.0025 * root**2) / (0.2 + 0.005 * root)
    assert unlearned[0] == pytest.approx(left, rel=1e-12)
    assert root == pytest.approx(-2.45637, abs=1e-5)  # pulled towards -B


def test_the_logistic_minimiser_against_another_solver():
    rng = np.random.default_rng(1)
    z = rng.normal(size=(60, 3)) + 0.3
    ours = newton.minimise(newton.logistic(0.05), z, np.zeros(3))
    other = minimize(lambda w: logistic_value(w, z, 0.05).mean(), np.zeros(3), method="BFGS", options={"gtol": 1e-10})
    np.testing.assert_allclose(ours, other.x, atol=1e-6)
    assert np.linalg.norm(newton.logistic(0.05).gradient(ours, z).mean(0)) < 1e-15


def test_minimising_from_afar_and_under_scaling():
    rng = np.random.default_rng(2)
    z = rng.normal(size=(40, 2))
    near = newton.minimise(newton.logistic(0.01), z, np.zeros(2))
    np.testing.assert_allclose(newton.minimise(newton.logistic(0.01), z, np.array([300.0, -200.0])), near, rtol=1e-10)
    for scale in (1e-4, 1e4):
        other = newton.minimise(newton.logistic(0.01 * scale**2), z * scale, np.zeros(2))
        np.testing.assert_allclose(other * scale, near, rtol=1e-9)


def test_every_point_of_the_cubic_grid_is_minimised():
    for radius in (4.0, 8.0, 12.0):
        for quadratic in (0.1, 0.15, 0.2):
            examples = np.concatenate(points.cubic_points(retain_size=1000, forget_size=50, radius=radius))
            w = newton.minimise(newton.cubic(quadratic, 0.001), examples, np.zeros(1))
            mean = 50 * radius / 1050
            assert w[0] == pytest.approx((-quadratic + math.sqrt(quadratic**2 - 0.002 * mean)) / 0.001, rel=1e-12)


def test_forgetting_nothing_changes_nothing_and_least_squares_is_exact():
    loss, _, d = CASES["logistic"]
    z = np.random.default_rng(3).normal(size=(30, d))
    w = newton.minimise(loss, z, np.zeros(d))
    hessian = loss.hessian(w, z).mean(0)
    np.testing.assert_array_equal(newton.newton_step(loss, w, hessian, z[:0], 30), w)
    # Without a third derivative one Newton step reaches the retain minimiser (why the paper leaves MSE out).
    retain, forget = np.zeros((9, 1)), np.full((3, 1), -4.0)
    trained, unlearned, retrained = newton.unlearn(newton.cubic(0.5, 0.0), retain, forget, np.zeros(1))
    assert trained[0] == pytest.approx(-2.0)
    np.testing.assert_allclose(unlearned, retrained, atol=1e-15)


def test_the_step_is_newtons_step_on_the_retain_set():
    """Algorithm 1 sees w, the stored Hessian and the forget set; the same step from the retain set itself."""
    loss, _, d = CASES["logistic"]
    z = np.random.default_rng(4).normal(size=(50, d)) + 0.5
    trained, unlearned, _ = newton.unlearn(loss, z[:40], z[40:], np.zeros(d))
    mean, curvature = loss.gradient(trained, z[:40]).mean(0), loss.hessian(trained, z[:40]).mean(0)
    np.testing.assert_allclose(unlearned, trained - np.linalg.solve(curvature, mean), rtol=1e-10)


@pytest.mark.parametrize("seed", range(10))
def test_lemma_3_holds_and_so_do_its_constants(seed):
    rng = np.random.default_rng(seed)
    retain, forget = points.boundary_points(rng, retain_size=200, forget_size=20, dimension=2, eta=0.8, forget_norm=3.0)
    loss, known = newton.logistic(0.1), newton.logistic_constants(0.1, radius=3.0)
    trained, unlearned, retrained = newton.unlearn(loss, retain, forget, np.zeros(2))
    sizes = {"forget_size": 20, "size": 220}
    bound = newton_bound(
        **sizes,
        strong_convexity=known.strong_convexity,
        lipschitz=known.lipschitz,
        hessian_lipschitz=known.hessian_lipschitz,
    )
    assert 0 < np.linalg.norm(unlearned - retrained) <= bound
    everything = np.concatenate([retain, forget])
    assert np.linalg.norm(everything, axis=1).max() <= 3.0 * (1 + 1e-12)
    ball = math.sqrt(2 * math.log(2) / 0.1)
    assert max(np.linalg.norm(trained), np.linalg.norm(retrained)) <= ball
    for _ in range(30):
        u, v = (rng.normal(size=2) * rng.uniform(0, ball / 3) for _ in range(2))
        u, v = newton.project(u, ball), newton.project(v, ball)
        assert np.linalg.norm(loss.gradient(u, everything), axis=1).max() <= known.lipschitz
        each = loss.hessian(u, everything)
        assert np.linalg.eigvalsh(each).min() >= known.strong_convexity - 1e-12
        turned = np.linalg.norm(each - loss.hessian(v, everything), ord=2, axis=(1, 2)).max()
        assert turned <= known.hessian_lipschitz * np.linalg.norm(u - v) * (1 + 1e-9)


def test_cubic_constants_are_attained_on_the_box():
    known = newton.cubic_constants(0.2, 0.005, box=2.5, radius=10.0)
    assert known.lipschitz == pytest.approx(0.2 * 2.5 + 0.005 * 2.5**2 / 2 + 10)
    loss, corners = newton.cubic(0.2, 0.005), np.array([[-10.0], [10.0]])
    grid = np.linspace(-2.5, 2.5, 101)
    steepest = max(np.abs(loss.gradient(np.array([w]), corners)).max() for w in grid)
    assert steepest == pytest.approx(known.lipschitz)
    flattest = min(loss.hessian(np.array([w]), corners).min() for w in grid)
    assert flattest == pytest.approx(known.strong_convexity) == pytest.approx(0.1875)


def test_points_are_placed_as_the_paper_says():
    rng = np.random.default_rng(0)
    retain, forget = points.boundary_points(
        rng, retain_size=20_000, forget_size=7, dimension=2, eta=0.8, forget_norm=5.0
    )
    assert np.linalg.norm(forget, axis=1) == pytest.approx(5.0) and len(np.unique(forget, axis=0)) == 1
    assert np.linalg.norm(retain, axis=1).max() <= 5.0
    assert (retain**2).sum(1).mean() == pytest.approx(1.0, abs=0.03)
    theta = points.direction(np.random.default_rng(0), 2)
    assert (retain @ theta > 0).mean() == pytest.approx(0.8, abs=0.01) and (forget @ theta < 0).all()

    sizes = {"retain_size": 600, "forget_size": 400, "dimension": 2}
    (x, y), (xf, yf) = points.regression_points(
        np.random.default_rng(0), **sizes, slope=0.5, half_range=10.0, forget_norm=10.0, label_noise=0.05
    )
    assert x.shape == (600, 2) and yf.shape == (400,) and np.abs(yf).max() <= 10
    np.testing.assert_allclose(newton.least_squares(x, y), 0.5 * theta, atol=0.01)
    np.testing.assert_allclose(newton.least_squares(xf, yf), -5.0 * theta, atol=0.02)
    clipped = points.regression_points(
        np.random.default_rng(0), **sizes, slope=0.5, half_range=0.1, forget_norm=10.0, label_noise=0.05
    )
    assert max(np.abs(side[1]).max() for side in clipped) == 0.1


def test_projection():
    np.testing.assert_allclose(newton.project(np.array([3.0, 4.0]), 1.0), [0.6, 0.8])
    inside = np.array([0.3, 0.4])
    assert newton.project(inside, 1.0) is inside
    assert newton.project(np.zeros(2), 1.0).tolist() == [0, 0]


def test_what_has_no_minimum_is_refused():
    with pytest.raises(InputError, match="add regularisation"):
        newton.minimise(newton.cubic(0.1, 0.1), np.full((3, 1), -1.0), np.zeros(1))
    with pytest.raises(InputError, match="examples of shape"):
        newton.minimise(newton.cubic(0.1, 0.0), np.zeros((0, 1)), np.zeros(1))
    with pytest.raises(InputError, match="quadratic=0.1"):
        newton.cubic_constants(0.1, 0.05, box=2.0, radius=1.0)
    with pytest.raises(InputError, match="rank 2, got 1"):
        newton.least_squares(np.ones((5, 2)), np.ones(5))
    with pytest.raises(InputError, match="size=3"):
        newton.newton_step(newton.cubic(0.1, 0.0), np.zeros(1), np.eye(1), np.zeros((3, 1)), 3)
    with pytest.raises(InputError, match="hessian of shape"):
        newton.newton_step(newton.cubic(0.1, 0.0), np.zeros(1), np.eye(2), np.zeros((3, 1)), 9)
    with pytest.raises(InputError, match="forget_norm=0.5"):
        points.boundary_points(
            np.random.default_rng(0), retain_size=5, forget_size=1, dimension=2, eta=0.8, forget_norm=0.5
        )
