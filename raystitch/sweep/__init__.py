"""What to do: the sweep file, its plan and its keys. No torch, no ray."""
