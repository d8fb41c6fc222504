"""All authors of papers whose citations name only the first, as BibTeX reads names."""

from __future__ import annotations

from collections.abc import Mapping

BY_TITLE: Mapping[str, tuple[str, ...]] = {
    "Communication-efficient learning of deep networks from decentralized data": (
        *("H. B. McMahan", "E. Moore", "D. Ramage", "S. Hampson", "Agüera y Arcas, B."),
    ),
    "Practical secure aggregation for privacy-preserving machine learning": (
        *("K. Bonawitz", "V. Ivanov", "B. Kreuter", "A. Marcedone", "H. B. McMahan"),
        *("S. Patel", "D. Ramage", "A. Segal", "K. Seth"),
    ),
    "Federated optimization in heterogeneous networks": (
        *("T. Li", "A. K. Sahu", "M. Zaheer", "M. Sanjabi", "A. Talwalkar", "V. Smith"),
    ),
    "Adaptive federated optimization": (
        *("S. J. Reddi", "Z. Charles", "M. Zaheer", "Z. Garrett"),
        *("K. Rush", "J. Konečný", "S. Kumar", "H. B. McMahan"),
    ),
    "SCAFFOLD: stochastic controlled averaging for federated learning": (
        *("S. P. Karimireddy", "S. Kale", "M. Mohri", "S. J. Reddi", "S. U. Stich", "A. T. Suresh"),
    ),
    "Tackling the objective inconsistency problem in heterogeneous federated optimization": (
        *("J. Wang", "Q. Liu", "H. Liang", "G. Joshi", "H. V. Poor"),
    ),
    "Federated learning based on dynamic regularization": (
        *("D. A. E. Acar", "Y. Zhao", "R. Matas", "M. Mattina", "P. Whatmough", "V. Saligrama"),
    ),
    "An efficient framework for clustered federated learning": ("A. Ghosh", "J. Chung", "D. Yin", "K. Ramchandran"),
    "Federated multi-task learning under a mixture of distributions": (
        *("O. Marfoq", "G. Neglia", "A. Bellet", "L. Kameni", "R. Vidal"),
    ),
    "Exploiting shared representations for personalized federated learning": (
        *("L. Collins", "H. Hassani", "A. Mokhtari", "S. Shakkottai"),
    ),
    "Ditto: fair and robust federated learning through personalization": (
        *("T. Li", "S. Hu", "A. Beirami", "V. Smith"),
    ),
    "FedBN: federated learning on non-IID features via local batch normalization": (
        *("X. Li", "M. Jiang", "X. Zhang", "M. Kamp", "Q. Dou"),
    ),
    "Federated learning with label distribution skew via logits calibration": (
        *("J. Zhang", "Z. Li", "B. Li", "J. Xu", "S. Wu", "S. Ding", "C. Wu"),
    ),
    "Federated learning with buffered asynchronous aggregation": (
        *("J. Nguyen", "K. Malik", "H. Zhan", "A. Yousefpour", "M. Rabbat", "M. Malek", "D. Huba"),
    ),
    "Tackling the data heterogeneity in asynchronous federated learning with cached update calibration": (
        *("Y. Wang", "Y. Cao", "J. Wu", "R. Chen", "J. Chen"),
    ),
    "Learning differentially private recurrent language models": (
        *("H. B. McMahan", "D. Ramage", "K. Talwar", "L. Zhang"),
    ),
    "Practical and private (deep) learning without sampling or shuffling": (
        *("P. Kairouz", "B. McMahan", "S. Song", "O. Thakkar", "A. Thakurta", "Z. Xu"),
    ),
    "Machine learning with adversaries: Byzantine tolerant gradient descent": (
        *("P. Blanchard", "El Mhamdi, E. M.", "R. Guerraoui", "J. Stainer"),
    ),
    "Byzantine-robust distributed learning: towards optimal statistical rates": (
        *("D. Yin", "Y. Chen", "K. Ramchandran", "P. Bartlett"),
    ),
    "FLTrust: Byzantine-robust federated learning via trust bootstrapping": (
        *("X. Cao", "M. Fang", "J. Liu", "N. Z. Gong"),
    ),
    "HACCS: Heterogeneity-aware clustered client selection for accelerated federated learning": (
        *("J. Wolfrath", "N. Sreekumar", "D. Kumar", "Y. Wang", "A. Chandra"),
    ),
    "Oort: Efficient federated learning via guided participant selection": (
        *("F. Lai", "X. Zhu", "H. V. Madhyastha", "M. Chowdhury"),
    ),
    "Resource-efficient federated learning with hierarchical aggregation": (
        *("Z. Wang", "H. Xu", "J. Liu", "H. Huang", "C. Qiao", "Y. Zhao"),
    ),
}
