"""Neural ODE with L-BFGS: fitted to 21 years of lynx and hare furs, on a raw Equinox model.

    make demo EXAMPLE=neural_ode, or: python examples/neural_ode.py

The Hudson Bay Company kept a record of the pelts that it bought. Those of the snowshoe hare, and of the Canada lynx
that lives on hares, rise and fall every ten years or so, the lynx after the hare. A small network learns how fast.

The model goes to the optimizer as it is: arrays, an activation function, a solver. The line search solves the equation
for every step length that it tries, and stores the value and the gradient of the last in the state. A picture of the
record and of the fit is written next to this file.
"""

import _program

# isort: split

import sys
from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator
from tqdm import tqdm

from treekit import optax

# --- The record -------------------------------------------------------------------------------------------------------

# Thousands of pelts in the years from 1900 to 1920, as textbooks of ecology have printed them since E. P. Odum's.
FIRST_YEAR = 1900
HARE = "30 47.2 70.2 77.4 36.3 20.6 18.1 21.4 22 25.4 27.1 40.3 57 76.6 52.3 19.5 11.2 7.6 14.6 16.2 24.7"
LYNX = "4 6.1 9.8 35.2 59.4 41.7 19 13 8.3 9.1 7.4 8 12.3 19.5 45.7 51.1 29.7 15.8 9.7 10.1 8.6"
PELTS = np.array([HARE.split(), LYNX.split()], np.float32).T  # [21, 2]

# The model sees their logarithms, with mean zero and variance one.
MEAN, SCALE = np.log(PELTS).mean(axis=0, keepdims=True), np.log(PELTS).std(axis=0, keepdims=True)
RECORD = (np.log(PELTS) - MEAN) / SCALE
YEARS = np.arange(len(PELTS), dtype=np.float32)

HIDDEN = 1  # quantities that no trapper counted, such as what there is for the hares to eat
DECAY = 1e-5
STEPS = {last: 25 for last in range(4, len(PELTS) - 1)} | {len(PELTS) - 1: 800}  # of L-BFGS, by the last year fitted
PICTURE = _program.picture_of(__file__)


# --- The model --------------------------------------------------------------------------------------------------------


class Populations(eqx.Module):
    """Two populations, and what is hidden, from a start in 1900; a network says how fast they change.

    Nothing hidden would leave a curve in the plane, which cannot cross itself. That of the record does.
    """

    rates: eqx.nn.MLP
    start: Array  # [2 + HIDDEN]

    def __init__(self, key: Array) -> None:
        size = 2 + HIDDEN
        self.rates = eqx.nn.MLP(size, size, width_size=16, depth=2, activation=jnp.tanh, key=key)
        self.start = jnp.concatenate([jnp.asarray(RECORD[0]), jnp.zeros(HIDDEN)])

    def __call__(self, years: Array) -> Array:
        """The two populations in these years, the first of which is that of the start: [n] to [n, 2]."""
        term = diffrax.ODETerm(lambda t, y, args: self.rates(y))
        saveat = diffrax.SaveAt(ts=years)
        solution = diffrax.diffeqsolve(
            term, diffrax.Tsit5(), years[0], years[-1], dt0=0.25, y0=self.start, saveat=saveat, max_steps=4 * len(PELTS)
        )
        states: Array = jnp.asarray(solution.ys)
        return states[:, :2]


def objective(model: Populations, last: Array) -> Array:
    """Half the mean squared error until the year `last`, and the decay of the weights."""
    errors = model(jnp.minimum(YEARS, last)) - RECORD  # the equation is solved no further than that
    fitted = jnp.where(YEARS[:, None] <= last, errors, 0)
    decay = sum(jnp.sum(layer.weight**2) for layer in model.rates.layers)
    return jnp.sum(fitted**2) / (last + 1) / 4 + DECAY * decay


# --- The fit ----------------------------------------------------------------------------------------------------------


def fit(model: Populations) -> tuple[Populations, list[float]]:
    """The fitted model, and the objective before each step.

    A fit to the whole record at once ends in a poor minimum, such as a flat line. So the years come in one by one, and
    what is fitted already shows the way to the next.
    """
    optimizer = optax.lbfgs()
    value_and_grad = optax.value_and_grad_from_state(objective)  # the line search has computed them already

    @eqx.filter_jit
    def step(model: Populations, state: Any, last: Array) -> tuple[Populations, Any, Array]:
        value, grad = value_and_grad(model, last, state=state)
        updates, state = optimizer.update(grad, state, model, value=value, grad=grad, value_fn=objective, last=last)
        return optax.apply_updates(model, updates), state, value

    values: list[float] = []
    with tqdm(total=sum(STEPS.values()), desc="L-BFGS", unit="step", ncols=80, disable=None) as progress:
        for year, steps in STEPS.items():
            state, last = optimizer.init(model), jnp.float32(year)  # another objective: what the state knows is void
            for _ in range(steps):
                model, state, value = step(model, state, last)
                values.append(float(value))
                progress.set_postfix_str(f"until {FIRST_YEAR + year}, {value:.4f}")
                progress.update()
    return model, values


def pelts(model: Populations, years: Array) -> np.ndarray:
    """Thousands of pelts, hare and lynx: [n, 2]."""
    thousands: np.ndarray = np.exp(np.asarray(model(years)) * SCALE + MEAN)
    return thousands


# --- The picture ------------------------------------------------------------------------------------------------------

BROWN, BLUE, PALE, GREY = "#b5651d", "#2a5c8a", "#b9cfe4", "#777777"


def draw(model: Populations, values: list[float]) -> None:
    figure = Figure(figsize=(12, 5), dpi=90, layout="constrained")
    grid = figure.add_gridspec(2, 2, width_ratios=[2, 1], height_ratios=[2, 1])
    years = jnp.linspace(0, YEARS[-1], 401)
    curve = pelts(model, years)
    draw_record(figure.add_subplot(grid[:, 0]), np.asarray(years), curve)
    draw_cycle(figure.add_subplot(grid[0, 1]), curve)
    draw_values(figure.add_subplot(grid[1, 1]), values)
    for axes in figure.axes:
        axes.spines[["top", "right"]].set_visible(False)
    _program.save(figure, PICTURE)


def draw_record(axes: Axes, years: np.ndarray, curve: np.ndarray) -> None:
    for i, (name, color) in enumerate([("hare", BROWN), ("lynx", BLUE)]):
        axes.plot(FIRST_YEAR + YEARS, PELTS[:, i], "o", color=color, label=f"{name}, the record")
        axes.plot(FIRST_YEAR + years, curve[:, i], color=color, label=f"{name}, the neural ODE")
    axes.set_title("pelts bought by the Hudson Bay Company, in thousands", loc="left")
    axes.set_xticks(range(FIRST_YEAR, FIRST_YEAR + len(PELTS), 4))
    axes.set_ylim(0, 1.25 * PELTS.max())  # room for the legend
    axes.legend(frameon=False, ncols=2, loc="upper center")


def draw_cycle(axes: Axes, curve: np.ndarray) -> None:
    axes.loglog(*PELTS.T, "o", color=PALE)
    axes.loglog(*curve.T, color=GREY)
    for i in (0, len(PELTS) - 1):
        axes.annotate(
            f"{FIRST_YEAR + i}", PELTS[i], xytext=(-8, -10), textcoords="offset points", fontsize=9, ha="right"
        )
    axes.set_ylim(bottom=3)
    for axis, ticks in ((axes.xaxis, (10, 20, 40, 80)), (axes.yaxis, (5, 10, 20, 40))):
        axis.set_major_locator(FixedLocator(ticks))
        axis.set_major_formatter("{x:.0f}")
        axis.set_minor_locator(NullLocator())
    axes.set_title("lynx over hare", loc="left", fontsize=9)


def draw_values(axes: Axes, values: list[float]) -> None:
    axes.semilogy(values, color=BLUE)
    axes.axvline(sum(STEPS.values()) - STEPS[len(PELTS) - 1], color=GREY, linestyle="--", linewidth=1)
    axes.set_title("objective; left of the line, another year every 25 steps", loc="left", fontsize=9)
    axes.set_xlabel("step of L-BFGS")


def main() -> None:
    _program.check_folder(PICTURE)
    model, values = fit(Populations(jax.random.key(0)))
    ratio = np.exp(np.abs(np.log(pelts(model, jnp.asarray(YEARS)) / PELTS)))
    median, worst = float(np.median(ratio)) - 1, float(np.max(ratio)) - 1
    draw(model, values)
    print(f"\nthe fit is off by {median:.0%} in half of the years, and by {worst:.0%} at most")
    print(f"picture: {PICTURE}")
    if median > 0.1:
        sys.exit(f"the fit is off by {median:.0%} in half of the years, and should be by less than 10 %")


if __name__ == "__main__":
    main()
