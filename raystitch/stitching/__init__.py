"""The science: stitches, objectives, protocols, IRIs, metrics. No ray."""
