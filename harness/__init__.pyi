from harness.cli.commands.advising import advise as advise
from harness.cli.commands.checking import check as check
from harness.cli.commands.comparing import compare as compare
from harness.cli.commands.predicting import predict as predict
from harness.cli.commands.running import run as run
from harness.results.loaded_tables import load as load

__version__: str
