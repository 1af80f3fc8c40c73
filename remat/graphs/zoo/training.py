"""Training graphs of layered networks."""

from __future__ import annotations

from remat.errors import GraphError
from remat.graphs.builder import GraphBuilder
from remat.graphs.graph import ComputeGraph
from remat.graphs.zoo.network import Network

BYTES_PER_ELEMENT = 4  # float32
LOSS = "loss"


def training_graph(network: Network) -> ComputeGraph:
    """Return one training step of `network`: its layers, a loss, and one gradient op for each layer in reverse.

    The gradient of a layer reads the layer's output and, for each reader of the layer, that reader's output and
    gradient. It has the size of the layer's output and twice its cost. The gradient of the last layer reads the loss
    instead. The loss costs nothing. Costs are multiply-accumulates of the whole batch, tensors are float32, and the
    order of the ops is the reference order. Constant memory is the image batch, the parameters and their gradients;
    ``meta["overhead"]`` has the split. The rules are those of Checkmate (Jain et al., MLSys 2020, section 6).

    Raises
    ------
    GraphError
        If the network has no layers, or a layer is named ``loss`` or like a gradient.

    Examples
    --------
    >>> net = Network("tiny", batch=2, image=(8, 8, 3))
    >>> _ = net.conv(16, 3), net.dense(10)
    >>> [(op.name, op.inputs) for op in training_graph(net).ops[2:]]  # doctest: +NORMALIZE_WHITESPACE
    [('loss', ('dense',)), ('grad_dense', ('dense', 'loss')), ('grad_conv2d', ('conv2d', 'dense', 'grad_dense'))]
    """
    layers = list(network.layers.values())
    if not layers:
        raise GraphError(f"network {network.name!r} has no layers", "no-ops")
    batch = network.batch
    height, width, channels = network.image
    input_bytes = BYTES_PER_ELEMENT * batch * height * width * channels
    param_bytes = BYTES_PER_ELEMENT * network.params
    builder = GraphBuilder(
        f"{network.name}-b{batch}",
        cost_unit="mac",
        source="built layer by layer by remat.graphs.zoo",
        constant_memory=input_bytes + 2 * param_bytes,
        meta={
            "batch": batch,
            "image": list(network.image),
            "params": network.params,
            "overhead": {
                "input_bytes": input_bytes,
                "param_bytes": param_bytes,
                "param_gradient_bytes": param_bytes,
            },
        },
    )
    readers: dict[str, list[str]] = {layer.name: [] for layer in layers}
    for layer in layers:
        for source in layer.inputs:
            readers[source].append(layer.name)
        builder.op(
            layer.name,
            inputs=layer.inputs,
            size=BYTES_PER_ELEMENT * batch * layer.elements,
            cost=batch * layer.macs,
            type=layer.kind,
            phase="forward",
        )
    last = layers[-1].name
    builder.op(LOSS, inputs=[last], size=BYTES_PER_ELEMENT * batch, type=LOSS, phase="loss")
    for layer in reversed(layers):
        later = [LOSS] if layer.name == last else []
        for reader in reversed(readers[layer.name]):
            later += [reader, _gradient(reader)]
        builder.op(
            _gradient(layer.name),
            inputs=[layer.name, *later],
            size=BYTES_PER_ELEMENT * batch * layer.elements,
            cost=2 * batch * layer.macs,
            type=f"{layer.kind}_gradient",
            phase="backward",
        )
    return builder.build()


def _gradient(layer: str) -> str:
    return f"grad_{layer}"
