"""What systems with a cache share: its size, and that features are under way before they are needed.

Legend as in `scheme`.
"""

from pydantic import Field

from strategies.baselines.scheme import SamplingParams, SamplingScheme


class KeepingParams(SamplingParams):
    """Of the cache."""

    share: float = Field(0.1, ge=0, examples=[0.0, 0.7])
    """Rows of others that a rank keeps, as a share of the rows that each had if all had as many."""
    prefetch: bool = True
    """The features of a mini-batch are under way while the one before it is trained on."""


class KeepingScheme(SamplingScheme):
    """Some rows of others on every rank."""

    Params = KeepingParams
    params: KeepingParams

    @property
    def ahead(self) -> bool:
        return self.params.prefetch

    @property
    def kept(self) -> float:
        return self.params.share
