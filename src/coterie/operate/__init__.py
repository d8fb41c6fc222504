"""For operators and owners of homes: founding, joining, the engine's server, watching, rehearsals."""
