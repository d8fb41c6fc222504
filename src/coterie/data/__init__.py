"""Data sets by name, and their partitions over clients."""

from coterie.data.dataset import Dataset, Graph, from_arrays
from coterie.data.partition import Split, label_counts, partition
from coterie.data.sources import NAMES, cache_dir, load
from coterie.data.tasks import Task, deal
