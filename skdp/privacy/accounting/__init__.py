"""What losses cost together: curves, composition, laws of sketches, receipts."""
