"""Selection of a round's clients: FedEPC's contextual bandit (CICS), Oort, and plain selections under a time budget."""
