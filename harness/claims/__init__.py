"""The claims of papers and verdicts on them: what a paper prints, compared with our own value of the same quantity."""

from harness.claims.claims import Claim as Claim
from harness.claims.claims import read_claims as read_claims
from harness.claims.evidence import Evidence as Evidence
from harness.claims.scoreboard import make_scoreboard as make_scoreboard
from harness.claims.selection import select as select
from harness.claims.verdicts import ClaimFilter as ClaimFilter
from harness.claims.verdicts import Result as Result
from harness.claims.verdicts import Verdict as Verdict
from harness.claims.verdicts import judge_all as judge_all
