from harness.api import advise as advise
from harness.api import check as check
from harness.api import compare as compare
from harness.api import load as load
from harness.api import predict as predict
from harness.api import run as run

__version__: str
