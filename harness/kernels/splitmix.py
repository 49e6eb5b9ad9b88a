"""The constants of splitmix64 (Steele, Lea and Flood, 2014), which both implementations of random bits have."""

GOLDEN = 0x9E3779B97F4A7C15
MIX_1 = 0xBF58476D1CE4E5B9
MIX_2 = 0x94D049BB133111EB
