"""``python -m isonorm``: the ``isonorm`` command."""

from .lab.cli import app

if __name__ == "__main__":
    app()
