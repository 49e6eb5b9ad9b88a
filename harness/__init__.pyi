from harness.commands.advising import advise as advise
from harness.commands.checking import check as check
from harness.commands.comparing import compare as compare
from harness.commands.predicting import predict as predict
from harness.commands.running import run as run
from harness.results.loaded_tables import load as load

__version__: str
