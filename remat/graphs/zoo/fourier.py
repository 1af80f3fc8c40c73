"""Neural operators in Fourier space as training graphs, op by op: FNO, U-FNO, U-NO."""

from __future__ import annotations

from math import prod

from remat.errors import GraphError
from remat.graphs.graph import ComputeGraph
from remat.graphs.zoo.autograd import COMPLEX, Accumulation, Output, Value, check_sizes
from remat.graphs.zoo.operators import ImageOperators

Sides = tuple[int, ...]


class FourierOperators(ImageOperators):
    """Operators in Fourier space; spectra of real values have half of the last side, with complex elements.

    Examples
    --------
    >>> net = FourierOperators("tiny", 2)
    >>> y = net.spectral_conv(net.source((2, 8, 6, 3)), 4, (2, 2))
    >>> y.shape, [call.name for call in net.calls]
    ((2, 8, 6, 4), ['fft', 'product1', 'product2', 'write', 'inverse_fft'])
    """

    def fft(self, name: str, x: Value) -> Value:
        """Add a discrete Fourier transform of real values over all sides."""
        batch, *sides, channels = x.shape
        shape = (batch, *sides[:-1], sides[-1] // 2 + 1, channels)
        return self.apply("fft", name, [x], [Output("", shape, COMPLEX)], flops=_fft_flops(batch * channels, sides))[0]

    def inverse_fft(self, name: str, x: Value, sides: Sides) -> Value:
        """Add the inverse transform to real values with the given sides."""
        batch, *_, channels = x.shape
        flops = _fft_flops(batch * channels, sides)
        return self.apply("inverse_fft", name, [x], [Output("", (batch, *sides, channels))], flops=flops)[0]

    def spectral_conv(self, x: Value, channels: int, modes: Sides, sides: Sides = ()) -> Value:
        """Multiply the lowest modes by parameters, one op per corner of the spectrum, and set the others to 0.

        The products read the spectrum through views and write into another spectrum, with the given sides.
        """
        batch, *before, depth = x.shape
        sides = sides or tuple(before)
        corner = (batch, *modes, channels)
        spectrum = self.fft("fft", x)
        products = [
            self.apply(
                "spectral_product", f"product{number + 1}", [spectrum], [Output("", corner, COMPLEX)],
                flops=8 * prod(corner) * depth, params=2 * depth * prod(corner[1:]),
            )[0]
            for number in range(2 ** (len(sides) - 1))
        ]  # fmt: skip
        shape = (batch, *sides[:-1], sides[-1] // 2 + 1, channels)
        (written,) = self.apply("write_corners", "write", products, [Output("", shape, COMPLEX)])
        return self.inverse_fft("inverse_fft", written, sides)

    def grid(self, sides: Sides, *, waves: bool = False) -> Value:
        """Add coordinates of points, computed in the forward pass; `waves`: sines and cosines of all but the last."""
        shape = (self.batch, *sides, 1)
        parts = [self.apply("constant", f"axis{axis}", [], [Output("", shape)])[0] for axis in range(len(sides))]
        if waves:
            turned = [
                self.apply("constant", f"{what}{axis}", [part], [Output("", shape)])[0]
                for what in ("sin", "cos")
                for axis, part in enumerate(parts[:-1])
            ]
            parts = [*turned, parts[-1]]
        return self.concat("grid", *parts) if len(parts) > 1 else parts[0]


def _fft_flops(count: int, sides: Sides | list[int]) -> int:
    """Return the FLOPs of `count` real transforms of any dimension: 5/2 n log2 n, the logarithm rounded up."""
    points = prod(sides)
    return count * 5 * points * (points - 1).bit_length() // 2


def fno(
    batch: int = 20,
    *,
    sides: Sides = (1024,),
    modes: int = 16,
    width: int = 64,
    features: int = 1,
    padding: int = 0,
    layers: int = 4,
    project: int = 256,
    accumulation: Accumulation = "sums",
    name: str = "fno",
) -> ComputeGraph:
    """Return the training graph of a Fourier neural operator (Li et al. 2020) in any dimension, as in its code.

    Parameters
    ----------
    sides : tuple of int
        Points along each dimension.
    modes : int
        Modes to keep along each dimension.
    width : int
        Channels.
    features : int
        Features of the input, in addition to the coordinates.
    padding : int
        Points added to the end of the last side inside the network.
    project : int
        Hidden units of the projection.
    accumulation : {"sums", "buffers"}
    """
    _check(name, sides, modes=modes, width=width, features=features, layers=layers, project=project)
    net = FourierOperators(name, batch, accumulation=accumulation)
    x = net.source((batch, *sides, features))
    net.source((batch, *sides, 1))  # the target of the loss
    with net.module("lift"):
        x = net.linear("linear", net.concat("concat", x, net.grid(sides)), width)
        inside = (*sides[:-1], sides[-1] + padding)
        if padding:
            x = net.reshaped("pad", "pad", x, (batch, *inside, width))
    for layer in range(layers):
        with net.module(f"layers.{layer}"):
            with net.module("spectral"):
                y = net.spectral_conv(x, width, (modes,) * len(sides))
            with net.module("mlp"):
                y = net.conv("conv2", net.elementwise("gelu", "gelu", net.conv("conv1", y, width, 1)), width, 1)
            x = net.add("add", y, net.conv("skip", x, width, 1))
            if layer < layers - 1:
                x = net.elementwise("gelu", "gelu", x)
    with net.module("project"):
        if padding:
            x = net.reshaped("crop", "crop", x, (batch, *sides, width))
        x = net.linear("linear2", net.elementwise("gelu", "gelu", net.linear("linear1", x, project)), 1)
    return net.build("mse_loss", x, sides=list(sides))


def u_fno(
    batch: int = 4,
    *,
    sides: Sides = (200, 96, 24),
    modes: int = 10,
    width: int = 36,
    features: int = 12,
    accumulation: Accumulation = "sums",
) -> ComputeGraph:
    """Return the training graph of U-FNO (Wen et al. 2022): three Fourier layers, then three with a parallel U-Net."""
    _check("u-fno", sides, modes=modes, width=width, features=features)
    net = FourierOperators("u-fno", batch, accumulation=accumulation)
    x = net.source((batch, *sides, features))
    net.source((batch, *sides, 1))  # the target of the loss
    inside = tuple(side + 8 for side in sides)
    if any(side % 8 for side in inside):
        raise GraphError(f"u-fno: the sides must be multiples of 8, not {sides}", "zoo")
    with net.module("lift"):
        x = net.reshaped("pad", "pad1", x, (batch, sides[0], *inside[1:], features))
        x = net.reshaped("pad", "pad2", x, (batch, *inside, features))
        x = net.linear("linear", x, width)
    for layer in range(6):
        with net.module(f"layers.{layer}"):
            with net.module("spectral"):
                y = net.spectral_conv(x, width, (modes,) * len(sides))
            y = net.add("add", y, net.conv("skip", x, width, 1))
            if layer >= 3:
                with net.module("unet"):
                    y = net.add("add", y, _small_unet(net, x))
            x = net.elementwise("relu", "relu", y)
    with net.module("project"):
        x = net.linear("linear2", net.elementwise("relu", "relu", net.linear("linear1", x, 128)), 1)
        x = net.reshaped("crop", "crop", x, (batch, *sides, 1))
    return net.build("mse_loss", x, sides=list(sides))


def _small_unet(net: FourierOperators, x: Value) -> Value:
    """Add the U-Net of U-FNO: three levels, in-place LeakyReLU."""
    width = x.shape[-1]

    def block(name: str, x: Value, stride: int = 1) -> Value:
        x = net.conv(f"conv{name}", x, width, 3, stride=stride, bias=False)
        return net.batch_norm(f"bn{name}", x, then="leaky_relu")

    one = block("1", x, 2)
    two = block("2_1", block("2", one, 2))
    three = block("3_1", block("3", two, 2))
    for name, skip in (("2", two), ("1", one), ("0", x)):
        up = net.conv_transpose(f"deconv{name}", three, width, 4, 2, then="leaky_relu")
        three = net.concat(f"concat{name}", skip, up)
    return net.conv("out", three, width, 3)


def uno(
    batch: int = 4, *, side: int = 64, steps: int = 10, width: int = 8, accumulation: Accumulation = "sums"
) -> ComputeGraph:
    """Return the training graph of U-NO (Rahman et al. 2022) for Navier-Stokes in space and time from `steps` steps.

    It has seven integral operators in a U, as in the authors' code that predicts 40 steps from 10.
    """
    _check("uno", (side, side, steps), width=width)
    if side % 8:
        raise GraphError(f"uno: the side must be a multiple of 8, not {side}", "zoo")
    net = FourierOperators("uno", batch, accumulation=accumulation)
    x = net.source((batch, side, side, steps, 1))
    net.source((batch, side, side, 4 * steps, 1))  # the target of the loss
    padding = steps // 5
    depth = steps + padding
    with net.module("lift"):
        x = net.concat("concat", x, net.grid((side, side, steps), waves=True))
        x = net.elementwise("gelu", "gelu1", net.linear("linear1", x, width // 2))
        x = net.elementwise("gelu", "gelu2", net.linear("linear2", x, width))
        x = lifted = net.reshaped("pad", "pad", x, (batch, side, side, depth, width))
    # Channels relative to the width, side in eighths, depth in tenths, modes in space and time, normalised or not.
    down = ((2, 6, 10, (20, 4), True), (4, 4, 10, (14, 4), False), (8, 2, 16, (6, 4), False), (16, 1, 16, (6, 7), True))
    up = ((4, 4, 24, (6, 7), False), (2, 6, 32, (14, 10), True), (2, 8, 40, (20, 14), False))
    outputs = []
    for number, (channels, eighths, tenths, modes, normalised) in enumerate((*down, *up)):
        sides = (eighths * side // 8, eighths * side // 8, tenths * depth // 10)
        with net.module(f"layers.{number}"):
            x = _integral_operator(net, x, channels * width, sides, modes, normalised=normalised)
            if number < len(down):
                outputs.append(x)
            else:
                skip = (outputs[1], outputs[0], lifted)[number - len(down)]
                skip = net.reshaped("resize", "resize_skip", skip, (batch, *sides, skip.shape[-1]))
                x = net.concat("concat", x, skip)
    with net.module("project"):
        x = net.reshaped("crop", "crop", x, (batch, side, side, 4 * steps, x.shape[-1]))
        x = net.linear("linear2", net.elementwise("gelu", "gelu", net.linear("linear1", x, 4 * width)), 1)
    return net.build("mse_loss", x, side=side, steps=steps)


def _integral_operator(
    net: FourierOperators, x: Value, channels: int, sides: Sides, modes: tuple[int, int], *, normalised: bool
) -> Value:
    with net.module("spectral"):
        y = net.spectral_conv(x, channels, (modes[0], modes[0], modes[1]), sides)
    with net.module("pointwise"):  # resampled in Fourier space, then in space
        z = net.fft("fft", net.conv("conv", x, channels, 1))
        z = net.inverse_fft("inverse_fft", net.reshaped("crop", "crop", z, z.shape), sides)
        z = net.reshaped("resize", "resize", z, (x.shape[0], *sides, channels))
    y = net.add("add", y, z)
    return net.elementwise("gelu", "gelu", net.instance_norm("norm", y) if normalised else y)


def _check(name: str, sides: Sides, **sizes: int) -> None:
    check_sizes(name, {f"side {number}": side for number, side in enumerate(sides, 1)} | sizes)
