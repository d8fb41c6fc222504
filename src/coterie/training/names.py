"""The models known by name, without torch."""

from __future__ import annotations

from collections.abc import Mapping

MODELS: Mapping[str, str] = {
    "cnn": "FedCAPrivacy's for CIFAR and PAFed's for MNIST: two 5x5 convolutions with 2x2 max pooling, 512 units, the "
    "output.",
    "cnn_256": "PAFed's for CIFAR-10 (table II): ``cnn`` with 256 units before the output (32x32 in colour: "
    "d = 1,105,098).",
    "cnn_bn": "PAFed's for CIFAR-100 (table IV): four 3x3 convolutions, batch normalisation after three, dropout, 512 "
    "units.",
    "linear": "Multinomial logistic regression.",
    "mlp": "FedCAPrivacy's for MNIST and Fashion-MNIST: two hidden layers of 200 and 100 (784-200-100-10: "
    "d = 178,110).",
    "mlp_small": "One hidden layer of 32, for the 8x8 digits (64-32-10).",
    "fcnn": "MingledPie's for MNIST and Fashion-MNIST: one hidden layer of 200 (784-200-10: d = 159,010).",
    "gcn": "OFL's for Cora, CiteSeer and PubMed: two graph convolutions of 64 (Kipf and Welling 2017), 512 units, the "
    "output. For graphs alone (Cora: d = 132,807).",
    "lenet": "MingledPie's for CIFAR-10, after LeNet-5 (LeCun et al. 1998, which it cites): d = 62,006 for 3x32x32.",
    "resnet18": "MingledPie's for CIFAR-100: ResNet-18 (He et al. 2016) for small images (32x32 in colour: "
    "d = 11,229,732).",
}
"""What each model is."""

GRAPH_MODEL = "gcn"
"""Its samples are neighbourhoods of nodes (``data/neighbourhoods.py``)."""
