"""What a mask's visible part can bring back: unlearned masked autoencoders under attack (RUB)."""
