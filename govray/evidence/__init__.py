"""What of a finished model goes to others: packs, views, exports, reports, notaries."""
