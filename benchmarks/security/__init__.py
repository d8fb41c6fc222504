"""What the parties of a system find out, measured on whole runs, over seeds, modes and settings."""
