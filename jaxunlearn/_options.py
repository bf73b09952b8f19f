"""What command-line options share."""

import tyro

UNSAID = tyro.conf.arg(help_behavior_hint="")
"""For options whose text names the real default: without it help adds "(default: None)"."""
