//! Documented format.
