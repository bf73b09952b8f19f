"""What an input can bring back: unlearned classifiers under attack (RUB)."""
