"""The images: sources, planted markers and Parquet shards. No ray."""
