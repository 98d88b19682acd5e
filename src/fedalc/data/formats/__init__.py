"""File formats: one file each, and what their readers share."""
