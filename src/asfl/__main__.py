"""`python -m asfl` is `asfl`."""

from asfl.cli import main

if __name__ == "__main__":
    main()
