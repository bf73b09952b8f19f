"""What a prompt can bring back: unlearned text-to-image models under attack (RUB)."""
