"""What all code for image-to-image models shares: what a masked autoencoder is, and which patches it sees.

An image of side n is a grid of N = (n / p)^2 patches of p x p pixels, row by row. A mask is an *order*: a permutation of the
patches of which the first ``visible`` are seen and the others hidden. Orders are arrays and the number of visible patches
is static, so that one program serves all masks of a size.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from jaxunlearn import _validate

_EPSILON = 1e-6  # added to a patch's variance, as in the public code


class Mask(NamedTuple):
    """Which patches of an image are seen.

    Attributes:
        order: [N] the patches, those that are seen first.
        visible: How many are.
    """

    order: np.ndarray
    visible: int

    def of(self, count: int) -> Int[Array, "b N"]:
        """The same order for each of ``count`` images."""
        return jnp.broadcast_to(jnp.asarray(self.order, jnp.int32), (count, self.order.size))

    @property
    def hidden(self) -> np.ndarray:
        """[N] bool in the order of the grid."""
        found = np.ones(self.order.size, bool)
        found[self.order[: self.visible]] = False
        return found


def centre(grid: int, sixteenths: int = 8) -> Mask:
    """Hides a square in the middle.

    Args:
        grid: Patches along a side.
        sixteenths: Side of the square in sixteenths of the image's (RUB's reference code has 4 and 8), rounded to whole
            patches; where these cannot be centred exactly, half a patch to the upper left.

    Raises:
        InputError: The square would hold no patch, or all.
    """
    _validate.at_least(1, grid=grid, sixteenths=sixteenths)
    side = round(grid * sixteenths / 16)
    _validate.require(
        0 < side < grid,
        f"Expected sixteenths={sixteenths} of {grid} patches to hide some of them and leave some, got a side of {side}; take "
        "another share, or smaller patches.",
    )
    return square(grid, side)


def square(grid: int, side: int) -> Mask:
    """Hides ``side`` x ``side`` patches in the middle, 0 < side < grid; if uneven, half a patch to the upper left."""
    first = (grid - side) // 2
    hidden = np.zeros((grid, grid), bool)
    hidden[first : first + side, first : first + side] = True
    return Mask(np.argsort(hidden.ravel(), kind="stable").astype(np.int32), grid * grid - side * side)


def random_orders(key: PRNGKeyArray, count: int, patches: int) -> Int[Array, "b N"]:
    """``count`` independent uniform permutations of the patches."""
    return jnp.argsort(jax.random.uniform(key, (count, patches)), axis=1).astype(jnp.int32)


def inverse(order: Int[Array, "b N"]) -> Int[Array, "b N"]:
    """At which place of its order each patch stands."""
    return jnp.argsort(order, axis=1).astype(jnp.int32)


def is_hidden(order: Int[Array, "b N"], visible: int) -> Bool[Array, "b N"]:
    """Which patches are not among the first ``visible``, in the order of the grid."""
    return inverse(order) >= visible


def patchify(x: Float[Array, "b h w c"], patch: int) -> Float[Array, "b N q"]:
    """Images as patches of q = p * p * c numbers: row, column, channel."""
    b, h, w, c = x.shape
    rows = x.reshape(b, h // patch, patch, w // patch, patch, c).swapaxes(2, 3)
    return rows.reshape(b, (h // patch) * (w // patch), patch * patch * c)


def unpatchify(patches: Float[Array, "b N q"], patch: int) -> Float[Array, "b h w c"]:
    """The inverse of ``patchify``, of square images."""
    b, n, q = patches.shape
    grid, channels = round(n**0.5), q // (patch * patch)
    rows = patches.reshape(b, grid, grid, patch, patch, channels).swapaxes(2, 3)
    return rows.reshape(b, grid * patch, grid * patch, channels)


class Autoencoder(NamedTuple):
    """A masked autoencoder as pure functions.

    Parameters are a dictionary of "encoder" and "decoder". Images are in [0, 1] whatever the network normalises inside.

    Attributes:
        side: Pixels along a side, n.
        channels: Of images, c.
        patch: Pixels along a patch's side, p.
        init: ``(key) -> params``.
        encode: ``(params, x [b, n, n, c], order [b, N], visible) -> latents [b, visible + 1, d]``: of the class token, then
            of the visible patches as ordered; neither hidden pixels nor the decoder's parameters are looked at.
        decode: ``(params, latents, order) -> [b, N, p * p * c]``: what is predicted of all patches, in the grid's order.
        normalised: Whether predictions are of pixels less their patch's mean and over its deviation.
    """

    side: int
    channels: int
    patch: int
    init: Callable[[PRNGKeyArray], Any]
    encode: Callable[[Any, Float[Array, "b n n c"], Int[Array, "b N"], int], Float[Array, "b t d"]]
    decode: Callable[[Any, Float[Array, "b t d"], Int[Array, "b N"]], Float[Array, "b N q"]]
    normalised: bool = False

    @property
    def grid(self) -> int:
        """Patches along a side."""
        return self.side // self.patch

    @property
    def patches(self) -> int:
        """Patches of an image, N."""
        return self.grid**2

    def targets(self, x: Float[Array, "b n n c"]) -> Float[Array, "b N q"]:
        """What the decoder should predict of an image's patches."""
        found = patchify(x, self.patch)
        if not self.normalised:
            return found
        mean, variance = jnp.mean(found, axis=-1, keepdims=True), jnp.var(found, axis=-1, ddof=1, keepdims=True)
        return (found - mean) * jax.lax.rsqrt(variance + _EPSILON)

    def predict(self, params: Any, x: Float[Array, "b n n c"], order: Int[Array, "b N"], visible: int) -> Array:
        """[b, N, p * p * c] what is predicted of all patches from the visible ones."""
        return self.decode(params, self.encode(params, x, order, visible), order)

    def losses(
        self, params: Any, x: Float[Array, "b n n c"], order: Int[Array, "b N"], visible: int
    ) -> Float[Array, " b"]:
        """Mean squared error over each image's hidden pixels: what a masked autoencoder is trained on (He et al., 2022)."""
        return hidden_error(self.predict(params, x, order, visible), self.targets(x), order, visible)

    def reconstruct(
        self, params: Any, x: Float[Array, "b n n c"], order: Int[Array, "b N"], visible: int
    ) -> Float[Array, "b n n c"]:
        """The image with its hidden patches as predicted and the visible ones as they are.

        The output and all derivatives by x depend on visible pixels alone.

        Raises:
            InputError: Predictions are normalised, so that pixels would take what is hidden.
        """
        _validate.require(
            not self.normalised,
            "Expected an autoencoder of plain pixels: one with normalised predictions needs the mean and deviation of what "
            "is hidden to make an image; take weights trained with norm_pix_loss false.",
        )
        predicted, own = self.predict(params, x, order, visible), patchify(x, self.patch)
        return unpatchify(jnp.where(is_hidden(order, visible)[..., None], predicted, own), self.patch)


def hidden_error(
    predicted: Float[Array, "b N q"], target: Float[Array, "b N q"], order: Int[Array, "b N"], visible: int
) -> Float[Array, " b"]:
    """Mean squared difference over the hidden patches of each image."""
    errors = jnp.mean(jnp.square(predicted - target), axis=-1)
    return jnp.sum(jnp.where(is_hidden(order, visible), errors, 0.0), axis=1) / (order.shape[1] - visible)
