"""What came out: the store, tensors and the summary. No torch, no ray."""
