"""DistDGL-style training (Zheng et al., IA3'20): graph and features partitioned, everything fetched when it is needed.

It is what the caches of SALIENT++ and MassiveGNN are held against. It is not DGL: a rank is trainer and server in one,
and all ask each other in common calls. DistDGL has servers beside the trainers, which answer remote calls and share
memory with the trainers of their machine.

Legend as in `scheme`.
"""

from strategies.baselines.scheme import SamplingScheme


class DistDgl(SamplingScheme):
    """Neighbours and features from their owners, nothing kept."""

    name = "distdgl"
