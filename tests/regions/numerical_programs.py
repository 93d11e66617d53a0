"""Numerical methods as a user writes them: solvers, factorisations, integrators, optimisation by hand.

Each function takes a matrix of 20 rows and 4 columns.
"""

from __future__ import annotations

from typing import Any

import torch


def newton(x: torch.Tensor) -> torch.Tensor:
    """Square roots, to a tolerance."""
    target = x.abs() + 1
    guess = target.clone()
    while (guess * guess - target).abs().max() > 1e-4:
        guess = guess - (guess * guess - target) / (2 * guess)
    return guess


def newton_with_a_limit(x: torch.Tensor) -> Any:
    """The same in a ``for`` that ends early, with the number of steps."""
    target = x.abs() + 1
    guess = target.clone()
    steps = 0
    for _ in range(50):
        update = (guess * guess - target) / (2 * guess)
        guess = guess - update
        steps += 1
        if update.abs().max() < 1e-4:
            break
    return guess, steps


def bisection(x: torch.Tensor) -> torch.Tensor:
    low, high = torch.zeros_like(x), x.abs() + 2
    for _ in range(30):
        middle = (low + high) / 2
        above = middle * middle > x.abs()
        high = torch.where(above, middle, high)
        low = torch.where(above, low, middle)
    return (low + high) / 2


def power_iteration(x: torch.Tensor) -> Any:
    matrix = x.t() @ x + torch.eye(4)
    v = torch.ones(4)
    value = torch.zeros(())
    for _ in range(100):
        w = matrix @ v
        new_value = v @ w
        v = w / w.norm()
        if (new_value - value).abs() < 1e-5:
            break
        value = new_value
    return v, value


def fixed_point(x: torch.Tensor) -> torch.Tensor:
    """A layer that is in equilibrium with itself (DEQ), with a limit on the steps."""
    weight = torch.full((4, 4), 0.1)
    z = torch.zeros_like(x)
    for _ in range(60):
        following = torch.tanh(z @ weight + x)
        done = (following - z).norm() < 1e-4 * following.norm()
        z = following
        if done:
            break
    return z


def anderson(x: torch.Tensor) -> torch.Tensor:
    """A fixed point by a mixture of the last three steps, kept in a buffer of rows."""
    last = torch.zeros(3, 4)
    values = torch.zeros(3, 4)
    z = x[0] * 0
    for k in range(24):
        last[k % 3] = z
        values[k % 3] = torch.cos(z) * 0.5 + x[0] * 0.1
        residual = values - last
        gram = residual @ residual.t() + 1e-3 * torch.eye(3)
        alpha = torch.linalg.solve(gram, torch.ones(3))
        z = (alpha / alpha.sum()) @ values
    return z


def euler(x: torch.Tensor) -> Any:
    trajectory = [x]
    y, h = x, 0.05
    for _ in range(40):
        y = y + h * (torch.sin(y) - y)
        trajectory.append(y)
    return y, torch.stack(trajectory)


def runge_kutta(x: torch.Tensor) -> torch.Tensor:
    def f(t: float, y: torch.Tensor) -> torch.Tensor:
        return torch.sin(y) * t - y

    y, t, h = x, 0.0, 0.1
    for _ in range(30):
        k1 = f(t, y)
        k2 = f(t + h / 2, y + h / 2 * k1)
        k3 = f(t + h / 2, y + h / 2 * k2)
        k4 = f(t + h, y + h * k3)
        y = y + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        t += h
    return y


def adaptive_steps(x: torch.Tensor) -> Any:
    """Heun and Euler together; a step is taken or halved by the difference of the two."""
    t, end, h = torch.zeros(()), torch.ones(()), torch.tensor(0.3)
    y = x.clone()
    accepted = torch.zeros((), dtype=torch.int64)
    while t < end:
        h = torch.minimum(h, end - t)
        k1 = torch.cos(y) - y
        k2 = torch.cos(y + h * k1) - (y + h * k1)
        error = (h * (k2 - k1) / 2).abs().max()
        if error < 1e-2:
            y = y + h * (k1 + k2) / 2
            t = t + h
            accepted += 1
            h = h * 1.5
        else:
            h = h * 0.5
    return y, accepted


def conjugate_gradient(x: torch.Tensor) -> torch.Tensor:
    a = x.t() @ x + torch.eye(4)
    b = x[0]
    solution = torch.zeros(4)
    r = b - a @ solution
    p = r.clone()
    rs = r @ r
    for _ in range(40):
        if rs < 1e-10:
            break
        ap = a @ p
        alpha = rs / (p @ ap)
        solution = solution + alpha * p
        r = r - alpha * ap
        rs_new = r @ r
        p = r + (rs_new / rs) * p
        rs = rs_new
    return solution


def gram_schmidt(x: torch.Tensor) -> torch.Tensor:
    q = torch.zeros_like(x)
    for j in range(x.shape[1]):
        v = x[:, j].clone()
        for i in range(j):
            v -= (q[:, i] @ x[:, j]) * q[:, i]
        q[:, j] = v / (v.norm() + 1e-6)
    return q


def cholesky(x: torch.Tensor) -> torch.Tensor:
    n = x.shape[0]
    a = x @ x.t() + n * torch.eye(n)
    lower = torch.zeros_like(a)
    for j in range(n):
        rest = a[j, j] - (lower[j, :j] ** 2).sum()
        lower[j, j] = torch.sqrt(rest)
        for i in range(j + 1, n):
            lower[i, j] = (a[i, j] - lower[i, :j] @ lower[j, :j]) / lower[j, j]
    return lower


def cholesky_by_columns(x: torch.Tensor) -> torch.Tensor:
    n = x.shape[0]
    a = x @ x.t() + n * torch.eye(n)
    for j in range(n):
        a[j:, j] /= torch.sqrt(a[j, j])
        for k in range(j + 1, n):
            a[k:, k] -= a[k:, j] * a[k, j]
    return a.tril()


def forward_substitution(x: torch.Tensor) -> torch.Tensor:
    n = x.shape[0]
    lower = (x @ x.t()).tril() + 9 * torch.eye(n)
    y = torch.zeros(n)
    for i in range(n):
        y[i] = (x[i, 0] - lower[i] @ y) / lower[i, i]
    return y


def back_substitution(x: torch.Tensor) -> torch.Tensor:
    n = x.shape[0]
    upper = (x @ x.t()).triu() + 9 * torch.eye(n)
    y = torch.zeros(n)
    for i in range(n - 1, -1, -1):
        y[i] = (x[i, 0] - upper[i] @ y) / upper[i, i]
    return y


def jacobi_until_still(x: torch.Tensor) -> Any:
    a = x.t() @ x + 50 * torch.eye(4)
    diagonal = a.diagonal()
    rest = a - torch.diag(diagonal)
    y, b = torch.zeros(4), x[1]
    iterations = 0
    while True:
        y_new = (b - rest @ y) / diagonal
        iterations += 1
        if torch.allclose(y_new, y, atol=1e-6) or iterations >= 100:
            break
        y = y_new
    return y_new, iterations


def gradient_descent(x: torch.Tensor) -> torch.Tensor:
    w, velocity = torch.zeros(4), torch.zeros(4)
    target = x.sum(1)
    for step in range(50):
        gradient = x.t() @ (x @ w - target) / x.shape[0]
        velocity = 0.9 * velocity + gradient
        rate = 0.1 / (1 + step)
        w = w - rate * velocity
    return w


def adam_by_hand(x: torch.Tensor) -> torch.Tensor:
    w = torch.zeros(4)
    m, v = torch.zeros_like(w), torch.zeros_like(w)
    for step in range(1, 41):
        g = x.t() @ (x @ w - x.sum(1))
        m.mul_(0.9).add_(g, alpha=0.1)
        v.mul_(0.999).addcmul_(g, g, value=0.001)
        m_hat = m / (1 - 0.9**step)
        v_hat = v / (1 - 0.999**step)
        w -= 0.01 * m_hat / (v_hat.sqrt() + 1e-8)
    return w


def line_search(x: torch.Tensor) -> torch.Tensor:
    y = x[0]
    for _ in range(20):
        gradient = 2 * (y - x[1])
        step = 1.0
        while ((y - step * gradient - x[1]) ** 2).sum() > ((y - x[1]) ** 2).sum():
            step *= 0.5
        y = y - step * gradient
    return y


def sinkhorn(x: torch.Tensor) -> torch.Tensor:
    k = torch.exp(-x.abs())
    u, v = torch.ones(20), torch.ones(4)
    for _ in range(100):
        u_new = (1 / 20) / (k @ v)
        v = (1 / 4) / (k.t() @ u_new)
        error = (u_new - u).abs().sum()
        u = u_new
        if error < 1e-5:
            break
    return u[:, None] * k * v


def kalman(x: torch.Tensor) -> Any:
    transition = torch.eye(4) * 0.9
    mean, covariance = torch.zeros(4), torch.eye(4)
    means = torch.empty(20, 4)
    for t, observed in enumerate(x):
        mean = transition @ mean
        covariance = transition @ covariance @ transition.t() + 0.1 * torch.eye(4)
        gain = covariance @ torch.linalg.inv(covariance + torch.eye(4))
        mean = mean + gain @ (observed - mean)
        covariance = (torch.eye(4) - gain) @ covariance
        means[t] = mean
    return means, covariance


PROGRAMS = [
    value for value in vars().copy().values() if getattr(value, "__module__", "") == __name__
]
