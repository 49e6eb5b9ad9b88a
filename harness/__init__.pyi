from harness.api import advise as advise
from harness.api import check as check
from harness.api import load as load
from harness.api import predict as predict
from harness.commands.comparing import compare as compare
from harness.commands.running import run as run

__version__: str
