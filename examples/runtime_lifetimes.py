"""Draw what each runtime counts: ``python runtime_lifetimes.py docs/images/runtimes.png``."""

import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

#: First and last op of each tensor of x -> relu a -> reshape v -> relu b -> pool y; v has the bytes of a.
ROWS = {"x": (0, 1), "a": (1, 2), "v (view)": (2, 3), "b": (3, 4), "y": (4, 5)}
OPS = ["relu", "reshape", "relu", "pool", "end"]
INPUT, VALUE, VIEW, OUTPUT = "#0072B2", "#999999", "#E69F00", "#009E73"  # Okabe and Ito
TITLES = ["TFLM", "LiteRT", "ExecuTorch", "ONNX Runtime"]


def spans(runtime: str) -> dict[str, tuple[float, float, str, str]]:
    """Return for each tensor: begin, end, colour and hatch ('' counted, '//' not counted)."""
    last = 5
    found = {
        "x": (0, 1, INPUT, ""), "a": (0, 2, VALUE, ""), "v (view)": (1, 3, VIEW, ""), "b": (2, 4, VALUE, ""),
        "y": (3, last, OUTPUT, ""),
    }  # fmt: skip
    if runtime == "LiteRT":
        found["x"] = (0, last, INPUT, "")
    if runtime == "ONNX Runtime":
        found["x"] = (0, last, INPUT, "////")
    if runtime != "TFLM":
        found["a"] = (0, 3, VALUE, "")
        found["v (view)"] = (1, 3, VIEW, "////")
    return found


def main(path: str) -> None:
    """Draw the lifetimes in four runtimes."""
    figure, axes = plt.subplots(2, 2, figsize=(7, 4.6), sharex=True, sharey=True, layout="constrained")
    for axis, runtime in zip(axes.flat, TITLES, strict=True):
        axis.set_title(runtime, fontsize=13, loc="left")
        for row, (begin, end, colour, hatch) in enumerate(spans(runtime).values()):
            style = {"facecolor": "white", "edgecolor": colour, "hatch": hatch} if hatch else {"color": colour}
            axis.barh(row, end - begin, left=begin, height=0.66, linewidth=1.2, **style)
        axis.set_yticks(range(len(ROWS)), ROWS, fontsize=12)
        axis.set_xticks([k + 0.5 for k in range(5)], OPS, fontsize=10)
        axis.tick_params(length=0)
        axis.set_xlim(0, 5)
        if not axis.yaxis_inverted():
            axis.invert_yaxis()
        axis.spines[["top", "right"]].set_visible(False)
        for k in range(1, 5):
            axis.axvline(k, color="#dddddd", linewidth=0.8, zorder=0)
    full = plt.Rectangle((0, 0), 1, 1, color=VALUE)
    empty = plt.Rectangle((0, 0), 1, 1, facecolor="white", edgecolor=VALUE, hatch="////")
    figure.legend([full, empty], ["counted", "no bytes of its own, or the caller's"], loc="outside lower center",
                  ncols=2, frameon=False, fontsize=12)  # fmt: skip
    figure.savefig(path, dpi=100)


main(sys.argv[1])
