//! The operating system's disk.

/// The real one.
#[derive(Clone, Copy, Debug, Default)]
pub struct RealDisk {
    /// `--unsafe-bypass-fsync`: acknowledge from the page cache. Named by the operator, logged and exported loudly.
    pub bypass_fsync: bool,
}
