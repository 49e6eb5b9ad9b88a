"""Write docs/static/report.png, the picture of a report in README.md: `python docs/capture_report.py`.

Takes results/report.html, which `make smoke` writes, and needs Chromium.
"""

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
REPORT, PICTURE = ROOT / "results/report.html", ROOT / "docs/static/report.png"
SIZE = "1200,760"


def main() -> int:
    """Capture the top of the report; return the exit code."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None or not REPORT.is_file():
        print(f"needs Chromium, and {REPORT}, which `make smoke` writes", file=sys.stderr)
        return 2
    flags = ["--headless", "--no-sandbox", "--hide-scrollbars", f"--window-size={SIZE}"]
    subprocess.run(
        [browser, *flags, "--virtual-time-budget=4000", f"--screenshot={PICTURE}", REPORT.as_uri()],
        check=True,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
