"""`python -m localspec`, and the command `localspec`."""

import sys


def main() -> None:
    """Run the command line. Ctrl-C ends it quietly even while modules are being imported."""
    try:
        from localspec.cli import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
