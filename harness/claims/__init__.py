"""The claims of papers, each beside what this project says of the same: by a card, a formula, a prediction or a run."""

from harness.claims.claims import Claim as Claim
from harness.claims.claims import read_claims as read_claims
from harness.claims.evaluator import Evaluator as Evaluator
from harness.claims.verdicts import Result as Result
from harness.claims.verdicts import Verdict as Verdict
from harness.claims.verdicts import Wanted as Wanted
from harness.claims.verdicts import judge_all as judge_all
from harness.claims.verdicts import scoreboard as scoreboard
