//! The content of a file on the faulty disk, and what a power cut leaves of it.

/// The unit in which unsynced writes are kept or lost.
pub(super) const PAGE_BYTES: usize = 4096;

/// Where all randomness of a disk comes from.
#[derive(Clone, Debug)]
pub(super) struct Random(pub u64);

impl Random {
    /// The next number of splitmix64.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number from 0 to `most`, both included.
    pub fn up_to(&mut self, most: usize) -> usize {
        usize::try_from(self.draw() % (most as u64 + 1)).expect("not above `most`")
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct Node {
    pub durable: Vec<u8>,
    pub current: Vec<u8>,
    pub unsynced: Vec<Change>,
    /// Failed syncs so far. Each handle is told once (Linux errseq), whichever of them synced.
    pub sync_errors: u64,
}

#[derive(Clone, Debug)]
pub(super) enum Change {
    Write(usize, Vec<u8>),
    SetLen(usize),
}

impl Change {
    pub fn apply(&self, content: &mut Vec<u8>) {
        match self {
            Self::Write(position, bytes) => {
                let end = position + bytes.len();
                if content.len() < end {
                    content.resize(end, 0);
                }
                content[*position..end].copy_from_slice(bytes);
            }
            Self::SetLen(len) => content.resize(*len, 0),
        }
    }
}

impl Node {
    /// What is left: each page, and the length, as after some number of the unsynced changes.
    pub fn after_crash(&self, random: &mut Random) -> Vec<u8> {
        let count = self.unsynced.len();
        // A crash of the process alone keeps all; a disk with no cache at all keeps nothing. Both are worth much weight.
        match random.draw() % 4 {
            0 => return self.unsynced.iter().fold(self.durable.clone(), applied),
            1 => return self.durable.clone(),
            _ => {}
        }
        let len_version = random.up_to(count);
        let mut len = self.durable.len();
        let mut longest = self.durable.clone();
        let mut before = self.durable.clone();
        let pages_max = self.current.len().max(self.durable.len()).div_ceil(PAGE_BYTES);
        let versions: Vec<usize> = (0..pages_max).map(|_| random.up_to(count)).collect();
        for (version, change) in self.unsynced.iter().enumerate().map(|(n, change)| (n + 1, change)) {
            let after = applied(before.clone(), change);
            for page in versions.iter().enumerate().filter(|(_, v)| **v == version).map(|(page, _)| page) {
                let from = page * PAGE_BYTES;
                let to = ((page + 1) * PAGE_BYTES).min(after.len());
                if from >= to {
                    continue;
                }
                // Torn: the front of the page is new, the rest still the version before.
                let tear = if random.draw().is_multiple_of(4) { from + random.up_to(to - from) } else { to };
                longest.resize(longest.len().max(to), 0);
                let old = before.get(tear..to.min(before.len()).max(tear)).unwrap_or_default().to_vec();
                longest[from..tear].copy_from_slice(&after[from..tear]);
                longest[tear..to].fill(0);
                longest[tear..tear + old.len()].copy_from_slice(&old);
            }
            if version == len_version {
                len = after.len();
            }
            before = after;
        }
        longest.resize(len, 0);
        longest
    }
}

fn applied(mut content: Vec<u8>, change: &Change) -> Vec<u8> {
    change.apply(&mut content);
    content
}
