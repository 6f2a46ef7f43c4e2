"""Writes docs/openapi.json, the admin API's document."""

from __future__ import annotations

from forkgate.admin.openapi import render

if __name__ == "__main__":
    for path, text in render().items():
        path.write_text(text)
