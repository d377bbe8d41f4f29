"""`python -m localspec`, and the command `localspec`."""

import sys

_INTERRUPTED = 130  # the exit code after Ctrl-C: 128 + the number of SIGINT


def main() -> None:
    """Run the command line. Ctrl-C ends it quietly, even while modules are being imported."""
    try:
        from localspec.cli import main as run_command

        run_command()
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)


if __name__ == "__main__":
    main()
