//! What the operator chose: file < environment < flags.

pub mod limits;
