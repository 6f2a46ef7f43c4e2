"""Generated from ``link.proto`` by ``make proto``. Never edited by hand."""
