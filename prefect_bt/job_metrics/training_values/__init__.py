"""Values that a trainer reports by itself: in its output, its files, or $BT_METRICS_FILE."""
