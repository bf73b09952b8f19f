"""Unlearning personal data in language models, and the attacks that bring it back."""
