"""Studies that make tables of our documentation and of no paper. They use the package and are not part of it.

From the repository's root, each with ``--help``:

    python -m benchmarks.security SYSTEM FILE      what the parties of a system find out: docs/security
    python -m benchmarks.groups ITEM               FedCAPrivacy where groups are real: docs/reproduction/fedcaprivacy.md
    python -m benchmarks.forms ITEM                what MingledPie's exact sums cost: docs/reproduction/mingledpie.md
    python -m benchmarks.features FILE             which groups sparsity features show: docs/features.md
    python -m benchmarks.ridge ITEM                MingledPie's ill-conditioned H: docs/systems/mingledpie_appendix.md
    python -m benchmarks.clustering ITEM           FedEPC's clustering on made-up devices: docs/clustering.md
    python -m benchmarks.leading FILE              how often a client leads that lies about itself: docs/resources.md
    python -m benchmarks.privacy fedepc/privacy    what sparsity vectors tell: docs/privacy_sparsity.md
    python -m benchmarks.loopback SYSTEM           what processes on one machine cost: docs/deploy.md
    python -m benchmarks.scale clients FILE        what a job costs among 100 to 100,000 clients: docs/scale.md
    python -m benchmarks.scale workers FILE        what a chunk of work costs at workers on Ray: docs/scale.md
"""
