//! What must hold, one file each, with where it comes from. A broken one panics: the runner tells the seed and what led to it.

pub mod aborted_read;
pub mod dense_offsets;
pub mod duplicate;
pub mod durable_majority;
pub mod everything_ends;
pub mod lost_write;
pub mod needless_fatal;
pub mod offsets_together;
pub mod one_holder;
pub mod one_leader;
pub mod produce_then_commit;
pub mod replicas_agree;
pub mod stale_leader;
pub mod stale_offset;
pub mod whole_transaction;
