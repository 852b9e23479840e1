"""The networks: building, cutting, attacking and training them. No ray."""
