"""What an operator and the owners of homes use: founding, joining, the engine's server, watching, rehearsals."""
