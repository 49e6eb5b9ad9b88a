"""The formulas of all claims, by the claim's id: one module for each paper, over the quantities that papers share."""

from harness.claims.formula import Formulas
from harness.claims.formulas import (
    bulk_sampling_claims,
    cagnet_claims,
    g3_claims,
    plexus_claims,
    scalegnn_claims,
)

FORMULAS: Formulas = {
    **bulk_sampling_claims.FORMULAS,
    **cagnet_claims.FORMULAS,
    **g3_claims.FORMULAS,
    **plexus_claims.FORMULAS,
    **scalegnn_claims.FORMULAS,
}
"""A claim without a formula cannot be tested here; its note says why."""
