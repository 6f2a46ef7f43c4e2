"""What make runs for the repository itself: generated code, its checks, measurements by hand."""
