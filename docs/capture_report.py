"""Write docs/static/report.png, the picture of a report in README.md: `python docs/capture_report.py`.

Takes results/report.html, which `make smoke` writes, and needs Chromium.
"""

import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from matplotlib.image import imread, imsave

ROOT = Path(__file__).parents[1]
REPORT, PICTURE = ROOT / "results/report.html", ROOT / "docs/static/report.png"
WIDTH, TOP, BOTTOM = 1440, 1310, 2330
"""The shown part in pixels: the first charts. Look at the picture, because summaries vary in length."""


def main() -> int:
    """Capture the first charts of the report; return the exit code."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None or not REPORT.is_file():
        print(f"needs Chromium, and {REPORT}, which `make smoke` writes", file=sys.stderr)
        return 2
    with TemporaryDirectory() as folder:
        whole = Path(folder) / "report.png"
        flags = ["--headless", "--no-sandbox", "--hide-scrollbars", f"--window-size={WIDTH},{BOTTOM}"]
        subprocess.run(
            [browser, *flags, "--virtual-time-budget=6000", f"--screenshot={whole}", REPORT.as_uri()],
            check=True,
        )
        imsave(PICTURE, imread(whole)[TOP:])
    return 0


if __name__ == "__main__":
    sys.exit(main())
