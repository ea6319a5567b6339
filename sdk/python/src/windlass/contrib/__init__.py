"""Integrations with frameworks. Each module needs its framework and nothing else."""
