//! The one source of chance: SplitMix64. A seed is a run.

/// A generator. Cloning it forks nothing: both would give the same numbers.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// Of a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5851_f42d_4c95_7f2d)
    }

    /// The next number.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Below `bound`, which is at least 1.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// Between both, ends included.
    pub fn between(&mut self, least: u64, most: u64) -> u64 {
        least + self.below(most - least + 1)
    }

    /// True in so many of a thousand cases.
    pub fn chance(&mut self, per_mille: u64) -> bool {
        self.below(1_000) < per_mille
    }

    /// An index into something of that length.
    pub fn index(&mut self, length: usize) -> usize {
        self.below(length as u64) as usize
    }
}
